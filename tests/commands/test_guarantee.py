"""What a run guarantees is computed from its ledger, whatever its other files state."""

import json
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
from dp_accounting.rdp import RdpAccountant

from dpft.commands.composition import PUBLIC_TOKENIZER
from dpft.commands.guarantee import privacy_of, read_finished_runs
from dpft.errors import StateError
from dpft.methods.base import ParameterCounts
from dpft.privacy.accounting.calibration import Calibration
from dpft.privacy.ledger import read_ledger
from dpft.privacy.mechanisms.histogram import GaussianHistogram
from dpft.privacy.plan import SpentBefore, StepsPlan
from dpft.reports.privacy_json import PrivateRun
from dpft.strict_model import as_json
from tests.commands.run_folders import BATCH, NOISE, SIZE, edit, make_plan, make_run, mechanism
from tests.reports.test_privacy_record import without_privacy
from tests.slowness import slow_but

pytestmark = pytest.mark.usefixtures("shared_accounting")
DELTA = 1 / (2 * SIZE)


def expected(steps: int = 5) -> float:
    """Return the epsilon of some steps by dp_accounting."""
    gaussian = dp_accounting.GaussianDpEvent(NOISE)
    sampled = dp_accounting.PoissonSampledDpEvent(BATCH / SIZE, gaussian)
    accountant = RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    event = dp_accounting.SelfComposedDpEvent(sampled, steps)
    return float(accountant.compose(event).get_epsilon(DELTA))


def stated(folder: Path) -> PrivateRun:
    privacy = privacy_of(folder)
    assert isinstance(privacy, PrivateRun)
    return privacy


ONE_STEP = make_plan(steps=1)
EDITS: dict[str, dict[str, Any]] = {
    "epsilon": {"epsilon": 0.01},
    "bounds": {"epsilons": {"rdp": 0.01}, "accountant": "prv"},
    "delta": {"delta": 0.4},
    "noise": {"plan": {"noise_multiplier": 90.0, "sample_rate": 0.001}},
    "examples": {"plan": {"num_examples": 90 * SIZE}},
    "steps": {"plan": as_json(ONE_STEP), "steps_taken": 1},
    "unit": {"plan": {"unit": "customer", "unit_definition": "all records of a customer"}},
    "seed": {"private": False, "plan": {"reproducible": True}},
    "head": {"ledger": {"lines": 7, "head": "f" * 64}},
    "search": {
        "selection": {
            **{"theorem": "T", "eta": 1.0, "gamma": 0.1, "expected_trials": 9.0},
            "search_space": {},
        }
    },
}


@pytest.mark.parametrize("case", slow_but(["epsilon", "search"], EDITS))
def test_an_edit_of_privacy_json_changes_nothing_that_is_printed(tmp_path: Path, case: str) -> None:
    folder = make_run(tmp_path / "run")
    whole = stated(folder)
    edit(folder, **EDITS[case])
    privacy = stated(folder)
    assert privacy == whole
    assert privacy.epsilon == pytest.approx(expected(), rel=1e-4)
    assert (privacy.delta, privacy.private, privacy.steps_taken) == (DELTA, True, 5)
    assert privacy.plan == make_plan()
    assert privacy.ledger.head == read_ledger(folder / "ledger.jsonl").head
    (record,), _ = read_finished_runs([folder])
    assert record.privacy == privacy


@pytest.mark.slow
def test_steps_that_were_taken_again_are_counted(tmp_path: Path) -> None:
    longer = make_run(tmp_path / "run", *[mechanism()] * 8)
    privacy = stated(longer)
    assert privacy.epsilon == pytest.approx(expected(8), rel=1e-4)
    assert any("3 of its 8 noisy steps were repeated" in text for text in privacy.warnings)


def test_what_no_ledger_contains_is_as_it_was_recorded(tmp_path: Path) -> None:
    counts = ParameterCounts(trainable=77, new=0, total=80)
    known = {"date": "2026-01-02", "model": "gpt2", "parameters": counts}
    privacy = stated(make_run(tmp_path / "run", known=known))
    assert (privacy.date, privacy.model, privacy.parameters) == ("2026-01-02", "gpt2", counts)


SEARCH = Calibration(accountant="rdp-selection", epsilon=3.0, grid="g", target=3.0)


def test_the_best_of_a_search_has_the_bound_of_the_whole_search(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", plan=make_plan(is_trial=True, calibration=SEARCH))
    edit(folder, epsilon=0.5)
    privacy = stated(folder)
    assert (privacy.epsilon, privacy.epsilons) == (3.0, {"rdp-selection": 3.0})


@pytest.mark.parametrize("is_trial", [False, True])
def test_a_tokenizer_that_the_plan_names_is_composed(tmp_path: Path, is_trial: bool) -> None:
    histogram = GaussianHistogram(
        noise_std=40.0, l2_cap=4.0, linf_cap=1.0, words_per_record=64, delta=1e-6,
        num_examples=SIZE, num_examples_source="given",
    )  # fmt: skip
    before = SpentBefore(run_id="a" * 32, lines=3, head="b" * 64, delta=1e-6, mechanism=histogram)
    plan = make_plan(tokenizer=before, is_trial=is_trial, calibration=SEARCH if is_trial else None)
    folder = make_run(tmp_path / "run", plan=plan, known={"warnings": [PUBLIC_TOKENIZER]})
    privacy = stated(folder)
    whole = privacy.with_tokenizer
    assert whole is not None
    both = privacy.epsilon + whole.tokenizer.epsilon
    assert whole.delta == pytest.approx(DELTA + 1e-6)
    # of a search, the choice among the trials has no mechanism to compose with
    assert (whole.epsilon == both) == is_trial
    assert whole.epsilon <= both


def test_without_a_whole_ledger_nothing_is_printed(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    ledger = folder / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(lines[:-1]))
    with pytest.raises(StateError, match=r"ledger\.jsonl"):
        privacy_of(folder)
    ledger.unlink()
    with pytest.raises(StateError, match=r"ledger\.jsonl"):
        privacy_of(folder)


def test_a_private_run_does_not_pass_for_one_without_privacy(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    openly = without_privacy(StepsPlan(num_examples=80, expected_batch_size=10, steps=5))
    (folder / "privacy.json").write_text(json.dumps(openly))
    with pytest.raises(StateError, match=r"privacy\.json"):
        privacy_of(folder)
