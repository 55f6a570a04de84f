import hashlib
import itertools
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from dpft.evaluation.scores import ScoreEntry
from dpft.privacy.ledger import Ledger
from dpft.privacy.noise import NOISE_SOURCE
from dpft.privacy.plan import StepsPlan
from dpft.privacy.randomness import DROPOUT_SOURCE
from dpft.reports.privacy_json import read_privacy
from dpft.reports.report import A_PATH, public_configuration, write_report
from dpft.reports.run_record import (
    read_evaluations,
    read_own_evaluations,
    shown,
    write_metrics,
)
from dpft.reports.sections import HEAD_COMMAND
from dpft.strict_model import parse
from tests.reports.plain import (
    DECODE,
    WITH_TOKENIZER,
    guarantee_of,
    render,
    stated,
    whole_config,
)
from tests.reports.test_privacy_record import (
    LEDGER,
    SIZES,
    STEP,
    TWO_PHASES,
    clipping_plan,
    plan,
    without_privacy,
)
from tests.reports.test_privacy_record import record as private

ROOM = ", of which 0.01% is reserved for the rounding of the sum"
"""Of an expected batch of 10."""
CONFIG = {
    "model": {"name": "tiny", "path": None},
    "task": {"name": "e2e", "max_length": 100},
    "method": {"name": "full"},
    "train": {"learning_rate": 0.002, "weight_decay": 0.0},
    "scheduler": {"name": "constant"},
    "optimizer": {"name": "adamw"},
    "eval": {"held_out": None},
    "privacy": {"eps": 3.0, "show_diagnostics": False},
}


def entry(stage: str, bleu: float, **changes: object) -> ScoreEntry:
    values = {
        "task": "e2e",
        "split": "test",
        "examples": 630,
        "stage": stage,
        "split_is_public": True,
        "metrics": {"bleu": bleu},
        "not_computed": {},
    }
    return parse({**values, **changes}, ScoreEntry)


BOTH = [entry("before", 10.0), entry("after", 60.5)]


def non_private() -> dict:
    return without_privacy(StepsPlan(**SIZES))


def clipped(**changes: object) -> dict:
    """Of a run that clips and adds no noise."""
    return without_privacy(clipping_plan(**changes))


def tables(report: str) -> list[list[str]]:
    """Return the report's tables, each the lines between two that are not of a table."""
    groups = itertools.groupby(report.splitlines(), key=lambda line: line.startswith("|"))
    return [list(lines) for is_table, lines in groups if is_table]


def cells(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", line)) - 1


OWN_ROWS = {"name": "custom", "data_dir": "data", "prompt": "{question}", "target": "{answer}"}
HELD_OUT = {**CONFIG, "task": OWN_ROWS, "eval": {"held_out": 0.2}}
SHOWN = {**CONFIG, "privacy": {"eps": 3.0, "show_diagnostics": True}}
KINDS = {
    "private": (CONFIG, private(), BOTH),
    "given noise": (CONFIG, private(calibration=None), []),
    "weak": (SHOWN, private(delta=0.5), BOTH),
    "seeded": (CONFIG, private(reproducible=True), BOTH),
    "held out": (HELD_OUT, private(unit="customer_id"), BOTH),
    "two phases": (CONFIG, private(phases=TWO_PHASES), BOTH),
    "not private": ({**CONFIG, "privacy": {"name": "none"}}, non_private(), BOTH),
    "clipped": ({**CONFIG, "privacy": {"name": "none"}}, clipped(), BOTH),
    "clipped in two phases": (
        {**CONFIG, "privacy": {"name": "none"}},
        clipped(phases=TWO_PHASES),
        BOTH,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_table_is_well_formed(kind: str) -> None:
    for lines in tables(render(*KINDS[kind])):
        assert len(lines) >= 3
        assert set(lines[1]) <= set("|-:")
        assert {cells(line) for line in lines} == {cells(lines[0])}


def test_the_guarantee_below_the_title_states_all_that_it_depends_on() -> None:
    first = guarantee_of(render(*KINDS["private"])).splitlines()[0]
    for part in (
        "ε = 2.9900",
        "δ = 0.001",
        "upper bound by prv",
        "adding or removing one example",
        "Poisson sampling",
        "4 steps taken of 4 planned",
    ):
        assert part in first


@pytest.mark.parametrize("kind", ["seeded", "not private", "clipped", "clipped in two phases"])
def test_a_run_that_is_not_private_says_so_below_the_title_and_quotes_nothing(kind: str) -> None:
    report = render(*KINDS[kind])
    assert guarantee_of(report).startswith("**NOT PRIVATE")
    assert "How to quote" not in report


UNITS = "all records with one value of customer, of which at most 2 are trained on"


@pytest.mark.parametrize(
    "unit", ["one pair of a meaning and a sentence; equal pairs are records apart", UNITS]
)
def test_the_result_can_be_quoted_in_one_sentence(unit: str) -> None:
    report = render(CONFIG, private(unit_definition=unit), BOTH)
    assert report.startswith("# tiny fine-tuned on E2E\n\nData: E2E (")
    assert f"| privacy unit | {unit} |" in report
    quote = report.partition("## How to quote this result\n\n    ")[2].partition("\n")[0]
    whole = unit.partition(";")[0]
    assert quote.startswith("tiny fine-tuned on E2E (")
    assert quote.endswith(
        ") is (ε = 2.9900, δ = 0.001)-differentially private for adding or"
        f" removing {whole} (upper bound by prv; ledger head {LEDGER.head})."
    )


def test_a_quote_with_a_private_tokenizer_has_the_cost_of_both() -> None:
    report = render(CONFIG, {**private(), "with_tokenizer": WITH_TOKENIZER}, BOTH)
    quote = report.partition("## How to quote this result\n\n    ")[2].partition("\n")[0]
    assert "(ε = 4.2500, δ = 2e-05)" in quote and "including the tokenizer" in quote
    assert LEDGER.head in quote and WITH_TOKENIZER["tokenizer"]["ledger"]["head"] in quote


def test_a_run_that_clips_without_noise_says_so_and_nothing_of_epsilon() -> None:
    report = render(*KINDS["clipped"])
    first = guarantee_of(report).splitlines()[0]
    assert "clipped (`privacy.max_grad_norm=0.1`), and no noise was added.**" in first
    assert f"| clipping | flat, max_grad_norm 0.1, sensitivity 0.1{ROOM} |" in report
    assert "| noise | none |" in report and "| sampler | poisson |" in report
    assert "ε" not in report and "ledger" not in report
    assert "| clipping |" not in render(*KINDS["not private"])


def test_a_seeded_run_claims_no_cover() -> None:
    report = render(*KINDS["seeded"])
    assert "reproducible" in guarantee_of(report).splitlines()[0]
    assert "Nothing is covered" in report and "- Covered:" not in report
    assert "predictable" in report and NOISE_SOURCE not in report and DROPOUT_SOURCE not in report


def test_a_run_without_privacy_mentions_no_epsilon() -> None:
    assert not re.search("ε|epsilon", render(*KINDS["not private"]))


def test_the_noise_source_and_the_ledger_are_told() -> None:
    report = render(*KINDS["private"])
    assert f"| noise source | {NOISE_SOURCE} |" in report
    assert f"| dropout | {DROPOUT_SOURCE} |" in report
    assert f"5 lines, head `{LEDGER.head}`" in report
    assert "100 (privacy.num_examples); ε does not hide this number" in report
    assert NOISE_SOURCE not in report.partition("## Mechanism")[0], "a detail"


def test_trust_rule_6_epsilons_are_rounded_up_and_gdp_is_no_bound() -> None:
    prv = {"lower": 1.0, "estimate": 2.0, "upper": 2.00001}
    record = {**private(), "epsilon": 2.98991, "epsilons": {"gdp": 1.0, "prv": prv}}
    report = render(CONFIG, record, [])
    assert "ε = 2.9900" in report
    assert "| prv | 2.0001 | upper bound; estimate 2.0000 |" in report
    assert "| gdp | 1.0000 | estimate, not a bound |" in report


def test_a_failed_accountant_is_a_row_that_says_why() -> None:
    record = {**private(), "epsilons": {"pld": {"error": "too\nlong | wide"}}}
    assert "| pld | – | not computed: too long \\| wide |" in render(CONFIG, record, [])


def test_warnings_and_shown_losses_follow_the_guarantee() -> None:
    head = guarantee_of(render(*KINDS["weak"]))
    assert "Warning: δ = 0.5 is above 1/num_examples" in head
    assert "privacy.show_diagnostics=true" in head


def test_half_precision_is_named_with_what_it_does_to_the_sensitivity() -> None:
    half = {**CONFIG, "train": {**CONFIG["train"], "precision": "bf16"}}
    assert "1.0001" in render(half, private(), [])
    assert "1.0001" not in render(CONFIG, private(), [])


def test_the_report_says_that_epsilon_does_not_cover_how_long_steps_took() -> None:
    assert "Not covered: the duration of steps" in render(CONFIG, private(), [])


def test_scores_of_a_private_split_are_marked_beside_them_and_as_not_covered() -> None:
    whole = entry("after", 12.3456).marked(False)
    report = render(CONFIG, private(), [shown(whole, rounded=True)])
    mention = "computed on private held-out records, not covered by ε"
    assert report.count(mention) == 1 and report.count("eval.publish_private_scores=true") == 2
    assert "| BLEU ↑ | 12 |" in report and "Distinct inputs" not in report
    assert mention not in render(*KINDS["private"])


def test_trust_rule_8_a_report_says_of_a_private_split_that_its_scores_are_in_private() -> None:
    both = [entry(stage, 12.3456).marked(False) for stage in ("before", "after")]
    report = render(CONFIG, private(), both)
    assert "12.3" not in report and "630" not in report and "bleu" not in report.lower()
    assert "The scores before and after fine-tuning are those of private records" in report
    assert "`private/metrics.json`" in report and "`private/report.md`" in report


def test_the_report_says_that_records_or_units_were_held_out() -> None:
    config = HELD_OUT
    row = "| held out | each {} with probability 0.2, chosen by a secret key; scored, but not used"
    assert row.format("record") in render(config, private(), BOTH)
    assert row.format("unit") in render(config, private(unit="customer_id"), BOTH)
    assert "held out |" not in render(CONFIG, private(), BOTH)


def test_splits_have_tables_of_their_own_and_say_how_much_was_scored() -> None:
    other = entry("after", 5.0, split="validation", examples=9)
    report = render(CONFIG, private(), [BOTH[1], other, BOTH[0]])
    assert "| BLEU ↑ | 10.0000 | 60.5000 |" in report
    assert "| BLEU ↑ | 5.0000 |" in report
    assert "| Distinct inputs | 630 | 630 |" in report
    assert "## Scores on E2E, validation split" in report


def test_a_metric_without_a_value_says_why() -> None:
    missing = entry("after", 5.0, metrics={}, not_computed={"bleu": "no texts"})
    report = render(CONFIG, private(), [BOTH[0], missing])
    assert "| BLEU ↑ | 10.0000 | – |" in report
    assert "\nNot computed: bleu after fine-tuning (no texts).\n" in report


def test_where_nothing_was_scored_no_score_is_called_private() -> None:
    why = {"bleu": "one file"}
    nothing = entry("after", 0.0, metrics={}, examples=0, not_computed=why).marked(False)
    report = render(CONFIG, private(), [nothing])
    assert "not covered by ε" not in report and "| metric |" not in report
    assert "\nNot computed: bleu (one file).\n" in report


SAMPLE = {"input": "i", "prediction": "p", "reference": "r"}


def test_trust_rule_8_texts_go_where_their_split_is_no_longer_public(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    both = [entry(stage, 1.5, samples=[SAMPLE]) for stage in ("before", "after")]
    other = entry("after", 1.0, split="validation", samples=[SAMPLE])
    write_metrics(tmp_path, [*both, other], public=True)
    assert path.read_text().count('"samples"') == 3
    write_metrics(tmp_path, [both[1]], public=False)
    assert "1.5" not in path.read_text(), "scores of its other stages go, too"
    kept = json.loads(path.read_text())["evaluations"]
    assert [each["split"] for each in kept if "samples" in each] == ["validation"]


def test_the_reports_sentence_on_the_head_computes_it(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl", plan=plan()) as ledger:
        ledger.append(1, STEP)
        ledger.append(2, STEP)
        ledger.close()
    assert f"`{HEAD_COMMAND}`" in render(*KINDS["private"])
    printed = subprocess.check_output(HEAD_COMMAND, shell=True, cwd=tmp_path, text=True)
    assert printed.split()[0] == ledger.head
    second = json.loads((tmp_path / "ledger.jsonl").read_text().splitlines()[1])
    first = (tmp_path / "ledger.jsonl").read_bytes().partition(b"\n")[0]
    assert second["previous"] == hashlib.sha256(first).hexdigest()


def test_a_model_from_a_folder_is_called_by_it() -> None:
    folder = {**CONFIG, "model": {"name": "gpt2", "path": "models/mine"}}
    assert "# mine fine-tuned on E2E\n" in render(folder, private(), BOTH)


def test_an_evaluation_replaces_the_one_of_the_same_task_split_and_stage(tmp_path: Path) -> None:
    write_metrics(tmp_path, [entry("before", 1.0), entry("after", 2.0)], public=True)
    write_metrics(tmp_path, [entry("after", 3.0)], public=True)
    before, after = read_evaluations(tmp_path)
    assert (before.metrics, after.metrics) == ({"bleu": 1.0}, {"bleu": 3.0})
    write_metrics(tmp_path, [entry("after", 4.0)], public=False)
    assert [one.metrics for one in read_evaluations(tmp_path)] == [{}, {}]
    assert [one.metrics["bleu"] for one in read_own_evaluations(tmp_path)] == [1.0, 4.0]
    write_metrics(tmp_path, [entry("after", 5.0)], public=True)
    before, after = read_own_evaluations(tmp_path)
    assert (before.split_is_public, after.split_is_public) == (False, True)
    assert after.metrics == {"bleu": 5.0} and "4.0" not in own_text(tmp_path)


def own_text(folder: Path) -> str:
    return (folder / "private" / "metrics.json").read_text()


def test_publishing_is_of_the_splits_that_it_was_said_of(tmp_path: Path) -> None:
    other = entry("after", 7.125, split="validation")
    write_metrics(tmp_path, [entry("before", 1.25), entry("after", 2.125)], public=False)
    write_metrics(tmp_path, [other], public=False, publish=True)
    assert [one.metrics.get("bleu") for one in read_evaluations(tmp_path)] == [None, None, 7.1]
    write_metrics(tmp_path, [entry("after", 2.125)], public=False, publish=True)
    assert sorted(one.metrics["bleu"] for one in read_evaluations(tmp_path)) == [1.2, 2.1, 7.1]
    assert "7.125" in own_text(tmp_path)
    public = (tmp_path / "metrics.json").read_text()
    assert "125" not in public and "630" not in public


@pytest.mark.slow
def test_the_report_is_written_from_the_folders_files_alone(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(whole_config(CONFIG)))
    (tmp_path / "privacy.json").write_text(json.dumps(private()))
    write_metrics(tmp_path, [entry("after", 2.0)], public=True)
    write_report(tmp_path, read_privacy(tmp_path / "privacy.json"))
    first = (tmp_path / "report.md").read_text()
    write_report(tmp_path, read_privacy(tmp_path / "privacy.json"))
    assert (tmp_path / "report.md").read_text() == first
    assert "| BLEU ↑ | 2.0000 |" in first


def test_the_report_lists_what_each_phase_clips_with() -> None:
    assert f"| clipping | flat, max_grad_norm 0.1, sensitivity 0.1{ROOM} |" in render(
        *KINDS["private"]
    )
    report = render(*KINDS["two phases"])
    for line in (
        "| learning rate | 0.002, schedule constant (phase 1) |",
        f"| clipping in phase 1, full, 1 steps | flat, max_grad_norm 0.1, sensitivity 0.1{ROOM} |",
        "| clipping in phase 2, bitfit, 3 steps |"
        f" flat, max_grad_norm 0.5, sensitivity 0.5{ROOM} |",
    ):
        assert line in report.splitlines()


def test_paths_that_the_user_did_not_write_name_no_machine() -> None:
    config = {"model": {"path": "/home/me/run/private/base_model"}, "task": {"data_dir": "/data"}}
    words = ("model.path='/home/me/run/private/base_model'", "task.data_dir=/data")
    shown = public_configuration(config, words)
    assert shown == {"model": {"path": A_PATH}, "task": {"data_dir": "/data"}}
    assert public_configuration(config, ())["task"] == {"data_dir": A_PATH}


PRIVATE = {**private(), "epsilon": 2.99812, "delta": 1.19e-5}
ORDINARY = without_privacy(StepsPlan(num_examples=9, expected_batch_size=3, steps=9))


def beside(privacy: dict, *, prompts: str = "the user's", unparsed: int | None = None) -> dict:
    """What stands beside synthetic records."""
    return stated(privacy, prompts=prompts, unparsed=unparsed)


def test_a_private_runs_records_cost_what_the_run_cost() -> None:
    found = beside(PRIVATE)
    assert (found["private"], found["guarantee"]) == (True, PRIVATE)
    assert (found["run"], found["records"], found["decode"]) == ("outputs/x", 3, DECODE)
    # rounded up, never down
    stated = "guarantee as the model (epsilon = 2.9982, delta = 1.19e-05)"
    assert stated in found["notes"][0]
    assert "post-processing" in found["notes"][0]


def test_texts_that_are_no_rows_are_counted_where_they_may_be() -> None:
    found = beside(PRIVATE, prompts="none", unparsed=0)
    assert (found["retries"], found["records"], found["unparsed"]) == (2, 3, 0)
    assert "unparsed" not in beside(PRIVATE)


def test_prompts_are_said_not_to_be_covered_where_there_are_any() -> None:
    assert "epsilon does not cover the prompts" in beside(PRIVATE)["notes"][1]
    assert len(beside(PRIVATE, prompts="none")["notes"]) == 1


def test_records_generated_from_the_runs_own_records_are_not_private() -> None:
    found = beside(PRIVATE, prompts="the run's own records")
    assert found["private"] is False and "guarantee" not in found
    assert [note[:11] for note in found["notes"]] == ["NOT PRIVATE"]


@pytest.mark.parametrize(
    ("privacy", "why"), [(private(reproducible=True), "noise_seed"), (ORDINARY, "privacy=none")]
)
def test_a_run_that_is_not_private_says_so_first(privacy: dict, why: str) -> None:
    found = beside(privacy)
    assert found["private"] is False
    assert found["notes"][0].startswith("NOT PRIVATE") and why in found["notes"][0]
    assert not any("post-processing" in note for note in found["notes"])
    assert found["guarantee"] == privacy


def test_texts_of_a_model_with_a_private_tokenizer_cost_what_both_cost() -> None:
    found = beside({**PRIVATE, "with_tokenizer": WITH_TOKENIZER})
    assert found["guarantee"]["with_tokenizer"] == WITH_TOKENIZER
    assert "model and its tokenizer" in found["notes"][0]
    assert "(epsilon = 4.2500, delta = 2e-05)" in found["notes"][0]
