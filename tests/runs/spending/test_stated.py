"""An edited privacy.json is refused by what knows better, wherever it would be printed of."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from dpft.errors import StateError
from dpft.privacy.accounting.gaussian_histogram import GaussianHistogram
from dpft.privacy.ledger import Ledger, read_ledger
from dpft.runs.finished_runs import read_finished_runs
from dpft.runs.spending.spent_run import read_ended_ledger
from tests.runs.spending.run_folders import BATCH, NOISE, SIZE, edit, make_run, mechanism

PLAN = {
    "noise_multiplier": NOISE, "sample_rate": BATCH / SIZE, "steps": 5, "delta": 1 / (2 * SIZE),
    "num_examples": SIZE, "expected_batch_size": BATCH, "unit": "example",
    "unit_definition": "one pair", "neighboring_relation": "add_or_remove_one",
    "calibration": {"accountant": "rdp", "epsilon": 1.0, "grid": "g"},
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that ended, without its ``private/``."""
    known = {"calibration": PLAN["calibration"]}
    return make_run(tmp_path / "run", known=known, eps=1.0)


@pytest.fixture
def own(run: Path) -> Path:
    """The same, with its last checkpoint and its journal."""
    record = read_ledger(run / "ledger.jsonl")
    state = run / "private/checkpoints/step-00000005/state.json"
    state.parent.mkdir(parents=True)
    ledger = {"lines": 6, "head": record.heads[6], "position": 5}
    known = {"plan": PLAN, "promises": {"reproducible": False}, "ledger": ledger}
    state.write_text(json.dumps({"schema_version": 1, "run": known}))
    journal = "".join(json.dumps({"step": step}) + "\n" for step in range(1, 6))
    (run / "private/steps.jsonl").write_text(journal)
    return run


def refused(folder: Path, name: str) -> str:
    """Returns the sentence in which an edited key is refused, by all that print of the file."""
    sentences = []
    for read in (read_ended_ledger, lambda path: read_finished_runs([path])):
        with pytest.raises(StateError, match=f"privacy.json: {name} must be ") as error:
            read(folder)
        assert error.value.exit_code == 3
        sentences.append(str(error.value))
    assert sentences[0] == sentences[1]
    return sentences[0]


def test_what_a_run_wrote_is_believed(own: Path) -> None:
    assert read_ended_ledger(own) is not None
    (finished,), _ = read_finished_runs([own])
    assert finished.privacy["epsilon"] == 1.0


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
        ({"epsilon": 0.5, "calibration": None}, "epsilon"),
        ({"epsilon": 0.5, "calibration": None, "epsilons": None}, "epsilon"),
        (
            {"epsilon": 0.5, "calibration": None, "accountant": "gdp", "epsilons": {"gdp": 0.5}},
            "accountant",
        ),
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
    ("changes", "name"),
    [
        ({"delta": 0.4}, "delta"),
        ({"steps": 4}, "steps"),
        ({"unit_definition": "all records of one"}, "unit_definition"),
        ({"neighboring_relation": "replace_one"}, "neighboring_relation"),
        ({"private": False}, "private"),
        ({"epsilon": 0.5, "calibration": {**PLAN["calibration"], "epsilon": 0.5}}, "calibration"),
        ({"epsilon": 0.5, "calibration": None, "epsilons": {"rdp": 0.5}}, "calibration"),
    ],
)
def test_an_edit_that_only_a_checkpoint_shows_is_refused_where_there_is_one(
    own: Path, changes: dict, name: str
) -> None:
    edit(own, **changes)
    assert "state.json says" in refused(own, name)


def reconfigure(folder: Path, **privacy: object) -> None:
    path = folder / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["privacy"] |= privacy
    path.write_text(yaml.safe_dump(config))


@pytest.mark.parametrize(
    ("privacy", "name"),
    [({"delta": 1e-9}, "delta"), ({"unit": "customer"}, "unit"), ({"noise_seed": 1}, "private")],
)
def test_a_configuration_that_was_edited_contradicts_privacy_json(
    run: Path, privacy: dict, name: str
) -> None:
    reconfigure(run, **privacy)
    assert "config.yaml says" in refused(run, name)


def test_a_budget_below_what_the_noise_was_calibrated_to_is_refused(run: Path) -> None:
    """The report says what the noise was the least for."""
    reconfigure(run, eps=0.5)
    with pytest.raises(StateError, match="config.yaml: privacy.eps must be at least the epsilon"):
        read_ended_ledger(run)


def test_a_private_runs_file_states_an_epsilon(run: Path) -> None:
    """Without one it passed for a run without privacy, or lent its delta to the ledger's steps."""
    edit(run, epsilon=None, ledger=None, delta=0.4)
    with pytest.raises(StateError, match="must state the epsilon of the 5 noisy steps"):
        read_ended_ledger(run)


@pytest.mark.parametrize("steps", [0, 3])
def test_a_file_of_a_run_that_did_not_end_as_planned_is_refused(tmp_path: Path, steps: int) -> None:
    """Of no step, there was nothing that its epsilon was held against."""
    run = make_run(tmp_path / "run")
    (run / "ledger.jsonl").unlink()
    with Ledger(run / "ledger.jsonl") as ledger:
        for step in range(1, steps + 1):
            ledger.append(step, mechanism())
        ledger.close()
        known = {"lines": ledger.lines, "head": ledger.head}
    edit(run, ledger=known, steps_taken=steps)
    with pytest.raises(StateError, match=f"has {steps} of 5 steps; one of the two was edited"):
        read_ended_ledger(run)


def test_a_ledger_of_two_noises_is_no_plans(tmp_path: Path) -> None:
    noises = [mechanism()] * 4 + [mechanism(9.0)]
    refused(make_run(tmp_path / "run", *noises), "noise_multiplier")


def test_a_search_has_the_bound_that_it_was_bound_to(tmp_path: Path) -> None:
    selection = {"eta": 1.0, "gamma": 0.1}
    bound = {"accountant": "rdp-selection", "epsilon": 3.0}
    known = bound | {"selection": selection, "epsilons": {"rdp-selection": 3.0}}
    run = make_run(tmp_path / "run", known=known)
    trials = run / "private/tuning/trials.json"
    trials.parent.mkdir(parents=True)
    trials.write_text(json.dumps({"schema_version": 1, "calibration": bound | {"grid": "g"}}))
    assert read_ended_ledger(run) is not None
    edit(run, epsilon=0.5, epsilons={"rdp-selection": 0.5})
    refused(run, "epsilon")


@pytest.mark.parametrize("private", [False, True])
def test_an_epsilon_below_what_the_ledgers_steps_show_is_refused(
    run: Path, own: Path, private: bool
) -> None:
    """All of the file that goes with it was edited too, in a folder without ``private/``."""
    if not private:
        shutil.rmtree(own / "private")
    calibration = {**PLAN["calibration"], "epsilon": 0.05}
    edit(run, epsilon=0.05, calibration=calibration, epsilons={"rdp": 0.05})
    sentence = refused(run, "calibration" if private else "epsilon")
    assert private or "must be at least 0." in sentence


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.05, 0.013), (0.05, None), (None, 0.013), (1.0, 2.0)]
)
def test_the_epsilon_with_a_tokenizer_is_held_against_the_ledger_too(
    run: Path, epsilon: float | None, delta: float | None
) -> None:
    """It is what a report leads with."""
    edit(run, epsilon_with_tokenizer=1.2, delta_with_tokenizer=0.013)
    assert read_ended_ledger(run) is not None
    edit(run, epsilon_with_tokenizer=epsilon, delta_with_tokenizer=delta)
    refused(run, "epsilon_with_tokenizer")


def test_steps_that_were_taken_again_keep_no_calibrated_epsilon(tmp_path: Path) -> None:
    known = {"calibration": PLAN["calibration"], "epsilon": 2.0, "epsilons": {"rdp": 2.0}}
    longer = make_run(tmp_path / "run", *[mechanism()] * 6, known=known)
    assert read_ended_ledger(longer) is not None
    edit(longer, epsilon=1.0)
    refused(longer, "epsilon")


@pytest.mark.parametrize("changes", [{"epsilon": 0.5}, {"delta": 0.1}, {"num_examples": 9}])
def test_a_tokenizers_file_says_what_its_ledger_does(tmp_path: Path, changes: dict) -> None:
    histogram = GaussianHistogram(
        noise_std=40.0, l2_cap=4.0, linf_cap=1.0, words_per_record=64, delta=1e-6
    )
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.append(1, {**histogram.entry(), "num_examples": SIZE})
        ledger.close()
        known = {"lines": ledger.lines, "head": ledger.head}
    content = {
        "schema_version": 1, "private": True, "num_examples": SIZE, "steps": 1, "warnings": [],
        "words_kept": 3, "mechanism": "gaussian_histogram", "epsilon": histogram.epsilon,
        "delta": 1e-6, "accountant": "gaussian",
        "steps_taken": 1, "noise_multiplier": 10.0, "sample_rate": 1.0, "ledger": known,
    }  # fmt: skip
    (tmp_path / "privacy.json").write_text(json.dumps(content))
    assert read_ended_ledger(tmp_path) is not None
    edit(tmp_path, **changes)
    (name,) = changes
    with pytest.raises(StateError, match=f"privacy.json: {name} must be .*ledger.jsonl says"):
        read_ended_ledger(tmp_path)
