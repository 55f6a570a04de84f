"""The bill of a sweep: each run's own epsilon, and that of all of them together."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dpft.privacy.accounting import EpsilonBound, account
from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.records.costs import Bound, BoundedRun, UnboundedRun
from dpft.runs import tuning_bill
from dpft.runs.saved_run import SpentRun, read_spent
from dpft.runs.tuning_bill import _alone_in_words, _bill, _swept, _words, write_tuning_bill
from dpft.training import loop
from tests.stories.tiny import EVALUATION, TRAINING, Outcome, Workspace, make_workspace

SWEEP = (
    "train", "--multirun", *TRAINING, "train.steps=3", "privacy.noise_multiplier=1",
    "privacy.self_check=false", "eval.enabled=false", *EVALUATION,
)  # fmt: skip


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return make_workspace(tmp_path_factory.mktemp("bill"))


@pytest.fixture(scope="module")
def sweep(workspace: Workspace) -> Outcome:
    """Three runs of one mechanism."""
    outcome = workspace.run(*SWEEP, "train.seed=1,2,3", "hydra.sweep.dir=sweep")
    assert outcome.code == 0, outcome.err
    return outcome


def bound(steps: int, accountant: str = "pld") -> float:
    """Epsilon of that many of the sweep's steps in one run: batches of 8 of 40 records, noise 1."""
    mechanism = SampledGaussian(noise_multiplier=1.0, sample_rate=0.2, steps=steps, delta=1 / 80)
    return account(mechanism, accountant=accountant).epsilon


def test_a_sweep_ends_with_what_all_its_runs_cost(workspace: Workspace, sweep: Outcome) -> None:
    record = json.loads((workspace.root / "sweep/tuning_bill.json").read_text())
    (bill,) = record["bills"]
    # Three runs of three equal steps are one run of nine.
    assert bill["composed"]["epsilon"] == pytest.approx(bound(9), rel=1e-3)
    assert bill["composed"]["delta"] == 1 / 80
    assert bill["composed"]["accountant"] == "pld"
    own = json.loads((workspace.root / "sweep/0/privacy.json").read_text())["epsilon"]
    assert [run["epsilon"] for run in bill["runs"]] == [own] * 3
    assert [run["run"] for run in bill["runs"]] == ["0", "1", "2"]
    assert own < bill["composed"]["epsilon"] < 3 * own


def test_the_bill_is_printed_once(sweep: Outcome) -> None:
    (line,) = [each for each in sweep.out.splitlines() if each.startswith("tuning bill")]
    assert re.fullmatch(
        r"tuning bill of 3 runs on task e2e from data, unit example: epsilon = \d+\.\d{4}"
        r" at delta = 0\.0125 for all of them \(upper bound by pld\);"
        r" each alone \(by rdp at delta = 0\.0125\) 0: \d+\.\d{4}, 1: \d+\.\d{4}, 2: \d+\.\d{4}",
        line,
    )


def test_runs_of_other_deltas_or_accountants_each_name_their_own() -> None:
    first = BoundedRun(run="0", epsilon=1.5, delta=0.01, accountant="rdp")
    for other in ({"delta": 0.001}, {"accountant": "prv"}):
        words = _alone_in_words([first, replace(first, run="1", **other), UnboundedRun(run="2")])
        by, at = other.get("accountant", "rdp"), other.get("delta", 0.01)
        assert words == (
            f" 0: 1.5000 (by rdp at delta = 0.01), 1: 1.5000 (by {by} at delta = {at}),"
            " 2: not private"
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
    assert bill["runs"][1]["epsilon"] == pytest.approx(bound(2, "rdp"))
    assert "tuning bill of 2 runs" in outcome.out


@pytest.mark.slow
def test_runs_on_other_records_have_a_bill_of_their_own(workspace: Workspace) -> None:
    for folder in ("data", "data2"):
        (workspace.root / folder).mkdir(exist_ok=True)
    for path in (workspace.root / "data").iterdir():
        (workspace.root / "data2" / path.name).write_bytes(path.read_bytes())
    outcome = workspace.run(*SWEEP, "task.data_dir=data,data2", "hydra.sweep.dir=others")
    assert outcome.code == 0, outcome.err
    bills = [line for line in outcome.out.splitlines() if line.startswith("tuning bill")]
    assert [line.partition(",")[0] for line in bills] == [
        "tuning bill of 1 run on task e2e from data",
        "tuning bill of 1 run on task e2e from data2",
    ]


def test_a_damaged_ledger_is_named_and_not_counted(workspace: Workspace, sweep: Outcome) -> None:
    folder = workspace.root / "copy"
    (folder / "0").mkdir(parents=True)
    shutil.copy(workspace.root / "sweep/1/config.yaml", folder / "0")
    (folder / "0" / "ledger.jsonl").write_text("no line\n")
    runs = [folder / "0", workspace.root / "sweep/1"]
    assert write_tuning_bill(folder, runs).endswith("\nnot counted: 0")
    assert json.loads((folder / "tuning_bill.json").read_text())["not_counted"] == ["0"]


def test_a_search_in_a_sweep_adds_its_epsilon_and_delta(
    workspace: Workspace, sweep: Outcome
) -> None:
    (run,) = _swept(workspace.root / "sweep/0")
    cost = EpsilonBound(epsilon=3.0, delta=1e-6, accountant="rdp (Papernot & Steinke)", epsilons={})
    search = replace(run, own=cost, spent=None)
    composed = _bill("some records", [run, search, run]).composed
    assert isinstance(composed, Bound)
    assert composed.epsilon == pytest.approx(3 + bound(6), rel=1e-3)
    assert composed.delta == pytest.approx(1 / 80 + 1e-6)
    assert _bill("some records", [search]).composed == Bound(
        epsilon=3.0, delta=1e-6, accountant=cost.accountant
    )


def test_runs_of_differing_units_get_no_bound(workspace: Workspace, sweep: Outcome) -> None:
    (run,) = _swept(workspace.root / "sweep/0")
    bill = _bill("some records", [run, replace(run, unit="customer_id")])
    assert "no bound for all of them (their units differ: customer_id, example)" in _words(bill)


@pytest.mark.parametrize("seeded", [False, True])
def test_a_run_that_was_not_private_leaves_no_bound_for_all(
    workspace: Workspace,
    sweep: Outcome,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seeded: bool,
) -> None:
    def as_seeded(folder: str) -> SpentRun:
        run = read_spent(folder)
        return replace(run, plan=replace(run.plan, reproducible=folder.endswith("1")))

    change = {} if seeded else {"name": "none"}
    if seeded:
        monkeypatch.setattr(tuning_bill, "read_spent", as_seeded)
    for run in ("0", "1"):
        shutil.copytree(workspace.root / "sweep" / run, tmp_path / run)
    path = tmp_path / "1" / "config.yaml"
    config = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**config, "privacy": {**config["privacy"], **change}}))
    words = write_tuning_bill(tmp_path, [tmp_path / "0", tmp_path / "1"])
    assert "no bound for all of them (1 of 2 runs were not private: 1)" in words
    assert words.endswith(", 1: not private")
    (bill,) = json.loads((tmp_path / "tuning_bill.json").read_text())["bills"]
    assert [run["private"] for run in bill["runs"]] == [True, False]


@pytest.mark.slow
def test_sweeps_without_privacy_have_no_bill(workspace: Workspace) -> None:
    words = [word for word in SWEEP if not word.startswith("privacy.")]
    outcome = workspace.run(*words, "privacy=none", "train.seed=1,2", "hydra.sweep.dir=plain")
    assert (outcome.code, "tuning bill" in outcome.out) == (0, False), outcome.err
    assert not (workspace.root / "plain/tuning_bill.json").exists()
