"""An edited privacy.json is refused by what knows better, wherever it would be printed of."""

import json
from pathlib import Path

import pytest

from dpft.errors import StateError
from dpft.privacy.ledger import Ledger, read_ledger
from dpft.privacy.mechanisms.banded import Banded
from dpft.privacy.mechanisms.histogram import GaussianHistogram
from dpft.privacy.plan import HistogramPlan, write_plan
from dpft.records.ledger import Calibration
from dpft.runs.saved_run import read_ended_ledger, read_finished_runs
from tests.reports.run.test_privacy_record import without_privacy
from tests.runs.spending.run_folders import (
    BATCH,
    SIZE,
    edit,
    make_plan,
    make_run,
    mechanism,
    write_privacy,
)

CALIBRATION = Calibration(accountant="rdp", epsilon=1.0, grid="g", target=1.0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that ended, without its ``private/``."""
    return make_run(tmp_path / "run", plan=make_plan(calibration=CALIBRATION), eps=1.0)


def refused(folder: Path, name: str) -> str:
    """Returns the sentence in which an edited key is refused, by all that print of the file."""
    sentences = []
    for read in (read_ended_ledger, lambda path: read_finished_runs([path])):
        pattern = rf"privacy\.json(:| is damaged:) {name}( must be | is missing)"
        with pytest.raises(StateError, match=pattern) as error:
            read(folder)
        assert error.value.exit_code == 3
        sentences.append(str(error.value))
    assert sentences[0] == sentences[1]
    return sentences[0]


def test_what_a_run_wrote_is_believed(run: Path) -> None:
    assert read_ended_ledger(run) is not None
    (finished,), _ = read_finished_runs([run])
    assert finished.privacy.epsilon == 1.0


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"steps_taken": 4}, "steps_taken"),
        ({"noise_multiplier": 9.0}, "noise_multiplier"),
        ({"sample_rate": 0.1}, "sample_rate"),
        ({"num_examples": 10 * SIZE}, "num_examples"),
        ({"epsilon": 0.5}, "epsilon"),
        ({"epsilon": 0.5, "epsilons": {"rdp": 0.5}}, "epsilon"),
        ({"accountant": "prv"}, "accountant"),
        ({"unit": "customer_id"}, "unit"),
        ({"epsilon": 0.5, "calibration": None}, "calibration"),
        ({"delta": 0.4}, "delta"),
        ({"steps": 4}, "steps"),
        ({"unit_definition": "all records of one"}, "unit_definition"),
        ({"neighboring_relation": "replace_one"}, "neighboring_relation"),
        ({"private": False}, "private"),
        ({"epsilon": 0.5, "calibration": {**vars(CALIBRATION), "epsilon": 0.5}}, "calibration"),
        ({"num_examples": 10 * SIZE, "expected_batch_size": None}, "expected_batch_size"),
        ({"num_examples": 2 * SIZE, "expected_batch_size": 2 * BATCH}, "expected_batch_size"),
    ],
)
def test_an_edit_that_contradicts_the_ledger_or_the_file_itself_is_refused(
    run: Path, changes: dict, name: str
) -> None:
    edit(run, **changes)
    refused(run, name)


@pytest.mark.parametrize(
    ("begins", "cost", "is_planned"),
    [((0, 0, 0, 0, 0), 3, True), ((0, 1, 2, 2, 2), 4, False), ((0, 0, 0, 0, 4, 4), 3, True)],
)
def test_streams_that_cost_what_is_planned_have_its_epsilon_and_no_others(
    tmp_path: Path, begins: tuple[int, ...], cost: int, is_planned: bool
) -> None:
    banded = Banded(bands=2, coefficients=(0.8, 0.6))
    plan = make_plan(
        mechanism=banded, sample_rate=2 * BATCH / SIZE, sampler=banded.sampler_name,
        calibration=CALIBRATION,
    )  # fmt: skip
    entries = [plan.entry_at(0, stream=stream) for stream in begins]
    run = make_run(tmp_path / "run", *entries, plan=plan, eps=1.0)
    record = read_ledger(run / "ledger.jsonl")
    assert plan.event(record.streams).steps == cost
    if is_planned:
        assert read_ended_ledger(run) is not None
        edit(run, participations=cost)
        assert read_ended_ledger(run) is not None
        edit(run, participations=cost - 1)
        assert f"must be {cost}" in refused(run, "participations")
    else:
        edit(run, epsilon=0.9, epsilons={"rdp": 1.0})
        assert "must be 1.0" in refused(run, "epsilon")
        edit(run, epsilon=9.0, epsilons={"rdp": 9.0})
        assert read_ended_ledger(run) is not None


def test_a_private_runs_file_states_an_epsilon(run: Path) -> None:
    """Without one it passed for a run without privacy, or lent its delta to the ledger's steps."""
    edit(run, epsilon=None, ledger=None, delta=0.4)
    with pytest.raises(StateError, match=r"privacy.json is damaged: epsilon is missing"):
        read_ended_ledger(run)
    openly = without_privacy(num_examples=80, expected_batch_size=10, steps=5)
    (run / "privacy.json").write_text(json.dumps(openly))
    with pytest.raises(StateError, match="must state the epsilon of the 5 noisy steps"):
        read_ended_ledger(run)


@pytest.mark.parametrize("changes", [{"accountant": "gdp"}, {"epsilons": None}, {"epsilon": 0.5}])
def test_without_a_calibration_epsilon_is_the_answer_of_an_accountant_that_may_lead(
    tmp_path: Path, changes: dict
) -> None:
    run = make_run(tmp_path / "run")
    assert read_ended_ledger(run) is not None
    edit(run, **changes)
    (name,) = changes
    refused(run, name)


def test_a_search_has_the_bound_that_it_was_bound_to(tmp_path: Path) -> None:
    bound = {"accountant": "rdp-selection", "epsilon": 3.0, "grid": "g"}
    plan = make_plan(is_trial=True, calibration=Calibration(**bound))
    selection = {"theorem": "T", "eta": 1.0, "gamma": 0.1, "expected_trials": 9.0}
    known = {"selection": {**selection, "search_space": {}}, "calibration": None}
    run = make_run(tmp_path / "run", plan=plan, known=known)
    assert read_ended_ledger(run) is not None
    edit(run, epsilon=0.5, epsilons={"rdp-selection": 0.5})
    refused(run, "epsilon")


def test_an_epsilon_below_what_the_ledgers_steps_show_is_refused(tmp_path: Path) -> None:
    """Nothing else contradicts it where the noise was given."""
    run = make_run(tmp_path / "run")
    edit(run, epsilon=0.05, epsilons={"rdp": 0.05})
    assert "must be at least 0." in refused(run, "epsilon")


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.05, 0.013), (0.05, None), (None, 0.013), (1.0, 2.0)]
)
def test_the_epsilon_with_a_tokenizer_is_held_against_the_ledger_too(
    run: Path, epsilon: float | None, delta: float | None
) -> None:
    """It is what a report leads with."""
    tokenizer = {"epsilon": 0.2, "delta": 1e-6, "simple_composition": 1.2}
    tokenizer["ledger"] = {"lines": 3, "head": "a" * 64}
    edit(run, epsilon_with_tokenizer=1.2, delta_with_tokenizer=0.013, tokenizer=tokenizer)
    assert read_ended_ledger(run) is not None
    edit(run, epsilon_with_tokenizer=epsilon, delta_with_tokenizer=delta)
    with pytest.raises(StateError, match=r"privacy\.json.* (epsilon|delta)_with_tokenizer"):
        read_ended_ledger(run)


def test_steps_that_were_taken_again_keep_no_calibrated_epsilon(tmp_path: Path) -> None:
    plan = make_plan(calibration=CALIBRATION)
    known = {"epsilon": 2.0, "epsilons": {"rdp": 2.0}}
    longer = make_run(tmp_path / "run", *[mechanism()] * 6, plan=plan, known=known, eps=1.0)
    assert read_ended_ledger(longer) is not None
    edit(longer, epsilon=1.0)
    refused(longer, "epsilon")


@pytest.mark.parametrize("changes", [{"epsilon": 0.5}, {"delta": 0.1}, {"num_examples": 9}])
def test_a_tokenizers_file_says_what_its_ledger_does(tmp_path: Path, changes: dict) -> None:
    histogram = GaussianHistogram(
        noise_std=40.0, l2_cap=4.0, linf_cap=1.0, words_per_record=64, delta=1e-6
    )
    step = {**histogram.entry(), "num_examples": SIZE, "num_examples_source": "given"}
    plan = HistogramPlan(
        histogram=step, num_examples=SIZE, delta=1e-6, unit_definition="one record"
    )
    with Ledger(tmp_path / "ledger.jsonl", plan=write_plan(plan)) as ledger:
        ledger.append(1, step)
        ledger.close()
    own = {name: value for name, value in step.items() if name != "name"}
    known = {"epsilon": histogram.epsilon, "accountant": "gaussian", "words_kept": 3}
    known |= {"mechanism": step["name"], "steps": 1, "sample_rate": 1.0, **own}
    known |= {"epsilon_classical": 1.0, "histogram_sha256": "a" * 64, "algorithm": "unigram"}
    known |= {"sampler": "none"}
    write_privacy(tmp_path, plan, **known)
    assert read_ended_ledger(tmp_path) is not None
    edit(tmp_path, **changes)
    (name,) = changes
    with pytest.raises(StateError, match=f"privacy.json: {name} must be .*as the ledger says"):
        read_ended_ledger(tmp_path)
