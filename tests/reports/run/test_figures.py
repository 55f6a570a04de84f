"""What the page says first."""

import pytest

from dpft.privacy.accounting.interpretation import most_right
from dpft.records.privacy_file import COMPUTABLE
from dpft.records.scores import PRIVATE_SPLIT, ScoreEntry
from dpft.reports.run.figures import Figure, figures, meaning, tone
from dpft.reports.run.metrics_files import shown as public_part
from dpft.reports.run.scores import score_tables
from tests.reports.run.plain import TOKENIZER, plain
from tests.reports.run.test_report import BOTH, CONFIG, entry, non_private, private

figures = plain(figures)
meaning = plain(meaning)
tone = plain(tone)


def shown(*entries: ScoreEntry, config: dict = CONFIG, **changes: object) -> dict[str, Figure]:
    found = figures(config, private(**changes), score_tables(entries))
    return {figure.label: figure for figure in found}


def test_epsilon_and_delta_are_rounded_up_and_the_unit_is_named() -> None:
    record = {**private(unit="customer_id", num_examples=365), "epsilon": 7.9981, "delta": 1 / 730}
    epsilon, delta, unit = figures(CONFIG, record, [])
    assert (epsilon.label, epsilon.value) == ("ε", "8.00") and "by prv" in epsilon.note
    assert (delta.label, delta.value) == ("δ", "0.00137")
    assert (unit.value, unit.note) == ("customer_id", "one of 365, added or removed")


def test_nothing_is_promised_where_the_noise_can_be_computed() -> None:
    record = {**private(), "warnings": [COMPUTABLE]}
    (figure,) = figures(CONFIG, record, [])
    assert (figure.label, figure.value, figure.weak) == ("privacy", "none", True)
    assert meaning(record) is None and meaning(private()) is not None


def test_the_main_score_is_the_tasks_first_metric_before_and_after() -> None:
    both = [
        entry(stage, 60.0, metrics={"bleu": 60.0, "perplexity": value})
        for stage, value in (("before", 1523.4), ("after", 2.4411))
    ]
    config = {**CONFIG, "task": {**CONFIG["task"], "metrics": ["perplexity", "bleu"]}}
    score = shown(*both, config=config)["perplexity ↓"]
    assert (score.before, score.value, score.weak) == ("1523", "2.44", False)
    assert shown(BOTH[1])["bleu ↑"].before == ""


def test_a_score_of_a_private_split_is_marked_in_its_figure() -> None:
    """docs/design.md, rule 8."""
    score = shown(public_part(entry("after", 12.345).marked(False), rounded=True))["bleu ↑"]
    assert score.weak and score.note == PRIVATE_SPLIT and score.value == "12"
    assert "bleu ↑" not in shown(public_part(entry("after", 12.345).marked(False)))


def test_a_metric_without_a_better_direction_or_a_value_leads_nowhere() -> None:
    for metrics in ({"mean_length": 21.0}, {"unknown": 1.0}, {}):
        assert set(shown(entry("after", 0.0, metrics=metrics))) == {"ε", "δ", "unit"}
    lost = entry("after", 0.0, metrics={})
    assert set(shown(BOTH[0], lost)) == {"ε", "δ", "unit"}


@pytest.mark.parametrize("privacy", [non_private(), private(reproducible=True)])
def test_a_run_that_is_not_private_promises_nothing(privacy: dict) -> None:
    (figure,) = figures(CONFIG, privacy, [])
    assert (figure.label, figure.value, figure.weak) == ("privacy", "none", True)
    assert meaning(privacy) is None


def test_the_sentence_says_how_often_a_guess_of_membership_can_be_right() -> None:
    record = {**private(unit="customer_id"), "epsilon": 3.0, "delta": 1e-5}
    assert "at most **95.3 %**" in str(meaning(record)) and most_right(3.0, 1e-5) == "95.3"
    assert "the rows of one `customer_id` were trained on" in str(meaning(record))
    assert "one example was trained on" in str(meaning(private()))
    assert "nearly everything" in str(meaning({**record, "epsilon": 30.0}))


@pytest.mark.parametrize(
    ("epsilon", "color"),
    [(0.5, "good"), (1.0, "good"), (1.2, "fair"), (8.0, "fair"), (14.0, "bad")],
)
def test_the_promise_is_green_only_where_a_guess_of_membership_stays_one(
    epsilon: float, color: str
) -> None:
    record = {**private(), "epsilon": epsilon, "delta": 1e-5}
    assert tone(record) == color == figures(CONFIG, record, [])[0].tone
    both = {"epsilon_with_tokenizer": 20.0, "delta_with_tokenizer": 2e-5, "tokenizer": TOKENIZER}
    assert tone({**record, **both}) == "bad", "what both cost"


@pytest.mark.parametrize(
    "privacy",
    [non_private(), private(reproducible=True), {**private(), "warnings": [COMPUTABLE]}],
)
def test_what_promises_nothing_is_red(privacy: dict) -> None:
    assert tone(privacy) == "bad"


def test_a_model_with_a_private_tokenizer_promises_what_both_cost() -> None:
    both = {"epsilon_with_tokenizer": 7.25, "delta_with_tokenizer": 2e-5, "tokenizer": TOKENIZER}
    record = {**private(), "epsilon": 3.0, "delta": 1e-5, **both}
    epsilon, delta, _ = figures(CONFIG, record, [])
    assert (epsilon.value, delta.value) == ("7.25", "2 × 10⁻⁵")
    assert "its tokenizer included; 3.00 of the training" in epsilon.note
    assert f"{most_right(7.25, 2e-5)} %" in str(meaning(record))
