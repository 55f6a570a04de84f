"""The bill of a sweep: each run's own epsilon, and that of all of them together."""

import json
import re

import pytest

from dpft.privacy.accounting import rdp
from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.training import loop
from tests.cli.tiny import EVALUATION, TRAINING, Outcome, Workspace, make_workspace

SWEEP = (
    "train", "--multirun", *TRAINING, "train.steps=3", "privacy.noise_multiplier=1",
    "privacy.self_check=false", "eval.enabled=false", *EVALUATION,
)  # fmt: skip


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, shared_accounting: None) -> Workspace:
    return make_workspace(tmp_path_factory.mktemp("bill"))


@pytest.fixture(scope="module")
def sweep(workspace: Workspace) -> Outcome:
    """Three runs of one mechanism."""
    outcome = workspace.run(*SWEEP, "train.seed=1,2,3", "hydra.sweep.dir=sweep")
    assert outcome.code == 0, outcome.err
    return outcome


def renyi(steps: int, delta: float) -> float:
    """Epsilon of that many of the sweep's steps: batches of 8 of 40 records, noise 1."""
    mechanism = SampledGaussian(noise_multiplier=1.0, sample_rate=0.2, steps=steps, delta=delta)
    upper = rdp.epsilon(mechanism).upper
    assert upper is not None
    return upper


def test_a_sweep_ends_with_what_all_its_runs_cost(workspace: Workspace, sweep: Outcome) -> None:
    record = json.loads((workspace.root / "sweep/tuning_bill.json").read_text())
    (bill,) = record["bills"]
    delta = 1 / 80
    # Divergences of all nine steps at the sum of the deltas.
    assert bill["composed"]["epsilon"] == pytest.approx(renyi(9, 3 * delta))
    assert bill["composed"]["delta"] == pytest.approx(3 * delta)
    own = json.loads((workspace.root / "sweep/0/privacy.json").read_text())["epsilon"]
    assert [run["epsilon"] for run in bill["runs"]] == [own] * 3
    assert [run["run"] for run in bill["runs"]] == ["0", "1", "2"]
    assert own < bill["composed"]["epsilon"] < 3 * own


def test_the_bill_is_printed_once(sweep: Outcome) -> None:
    (line,) = sweep.out.splitlines()
    assert re.fullmatch(
        r"tuning bill of 3 runs on task e2e from data, unit example: epsilon = \d+\.\d{4}"
        r" at delta = 0\.0375 for all of them \(upper bound by rdp\);"
        r" each alone 0: \d+\.\d{4}, 1: .*",
        line,
    )


@pytest.mark.slow
def test_a_run_that_broke_off_is_counted_by_its_ledger(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = loop.check_weights, []

    def breaks(*args: object) -> None:
        calls.append(None)
        if len(calls) == 5:
            raise KeyboardInterrupt
        whole(*args)

    monkeypatch.setattr(loop, "check_weights", breaks)
    outcome = workspace.run(*SWEEP, "train.seed=1,2", "hydra.sweep.dir=broken")
    assert outcome.code == 130
    (bill,) = json.loads((workspace.root / "broken/tuning_bill.json").read_text())["bills"]
    assert bill["runs"][1]["epsilon"] == pytest.approx(renyi(2, 1 / 80))
    assert "tuning bill of 2 runs" in outcome.out


@pytest.mark.slow
def test_runs_on_other_records_have_a_bill_of_their_own(workspace: Workspace) -> None:
    for folder in ("data", "data2"):
        (workspace.root / folder).mkdir(exist_ok=True)
    for path in (workspace.root / "data").iterdir():
        (workspace.root / "data2" / path.name).write_bytes(path.read_bytes())
    outcome = workspace.run(*SWEEP, "task.data_dir=data,data2", "hydra.sweep.dir=others")
    assert outcome.code == 0, outcome.err
    assert [line.partition(",")[0] for line in outcome.out.splitlines()] == [
        "tuning bill of 1 run on task e2e from data",
        "tuning bill of 1 run on task e2e from data2",
    ]


def test_a_damaged_ledger_is_named_and_not_counted(workspace: Workspace, sweep: Outcome) -> None:
    from dpft.cli.tuning_bill import write_tuning_bill

    folder = workspace.root / "copy"
    (folder / "0").mkdir(parents=True)
    (folder / "0" / "ledger.jsonl").write_text("no line\n")
    runs = [folder / "0", workspace.root / "sweep/1"]
    assert write_tuning_bill(folder, runs).endswith("\nnot counted: 0")
    assert json.loads((folder / "tuning_bill.json").read_text())["not_counted"] == ["0"]


def test_sweeps_without_privacy_have_no_bill(workspace: Workspace) -> None:
    words = [word for word in SWEEP if not word.startswith("privacy.")]
    outcome = workspace.run(*words, "privacy=none", "train.seed=1,2", "hydra.sweep.dir=plain")
    assert (outcome.code, outcome.out) == (0, ""), outcome.err
    assert not (workspace.root / "plain/tuning_bill.json").exists()
