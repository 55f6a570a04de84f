"""A search, from its first trial to the winner: one epsilon, gone on with where it broke off."""

import errno
import json
import logging
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dpft.commands import train
from dpft.commands import tune as tuning
from dpft.commands.modality import text
from dpft.commands.tune import output_redirected_to, resumed_search
from dpft.errors import InputError, RunError
from dpft.privacy.accounting.selection import ACCOUNTANT
from dpft.privacy.randomness import PURPOSES, Randomness, make_randomness
from dpft.run_folder import KEYS
from dpft.training import loop
from dpft.training import starting_point as start
from dpft.training.diagnostics import Diagnostics
from tests.config.test_tune import command
from tests.rejections import rejects
from tests.stories.tiny import EVALUATION, SETTING, Outcome, Workspace, make_workspace, unnamed

SEARCH = (
    *SETTING, "tune.metric=perplexity", "privacy.eps=8", "privacy.delta=0.01",
    "privacy.noise_seed=3",
    "train.steps=2", "train.num_threads=1", "eval.split_is_public=true",
    "tuning.space.train.learning_rate=[0.0001,0.03]", "tuning.space.train.expected_batch_size=[8]",
    *EVALUATION,
)  # fmt: skip
WITHOUT_TEXTS = "task.metrics=[perplexity]"
SETTINGS = [
    {"train.learning_rate": rate, "train.expected_batch_size": 8} for rate in (0.0001, 0.03, 0.0001)
]


@pytest.fixture(scope="module", autouse=True)
def drawn() -> Iterator[None]:
    """Every search draws the same three trials, of which the second learns the most."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "draw_count", lambda count, stream: len(SETTINGS))
        patch.setattr(tuning, "draw_settings", lambda space, number, stream: SETTINGS)
        yield


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, shared_accounting: None) -> Workspace:
    return make_workspace(tmp_path_factory.mktemp("tune"))


@pytest.fixture(scope="module")
def outcome(workspace: Workspace) -> Outcome:
    """A search in the folder ``run``."""
    done = workspace.run("tune", *SEARCH, "hydra.run.dir=run")
    assert done.code == 0, done.err
    return done


def public_files(folder: Path) -> dict[str, Path]:
    names = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path for name, path in names.items() if not name.startswith("private")}


def breaking(whole: Callable[..., Any], call: int, error: BaseException) -> Callable[..., Any]:
    """A function that breaks off in its ``call``-th call."""
    calls: list[None] = []

    def breaks(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        if len(calls) == call:
            raise error
        return whole(*args, **kwargs)

    return breaks


@pytest.mark.slow
def test_the_winner_has_the_bound_of_the_whole_search(
    workspace: Workspace, outcome: Outcome
) -> None:
    record = json.loads((workspace.root / "run/privacy.json").read_text())
    assert record["accountant"] == ACCOUNTANT
    assert record["epsilons"] == {ACCOUNTANT: record["epsilon"]}
    assert 7.98 < record["epsilon"] <= 8
    selection = record["selection"]
    assert selection["expected_trials"] == pytest.approx(10.57, abs=0.01)
    assert selection["search_space"]["train.learning_rate"] == [0.0001, 0.03]
    report = (workspace.root / "run/report.md").read_text()
    assert f"| {ACCOUNTANT} | " in report and "| prv |" not in report


@pytest.mark.slow
def test_the_best_trial_by_a_score_that_is_better_lower_is_published(
    workspace: Workspace, outcome: Outcome
) -> None:
    run, best = workspace.root / "run", workspace.root / "run/private/tuning/trial-1"
    for name in ("model/model.safetensors", "metrics.json", "ledger.jsonl", "predictions.jsonl"):
        assert (run / name).read_bytes() == (best / name).read_bytes()
    assert "learning_rate: 0.03" in (run / "config.yaml").read_text()
    scores = [
        json.loads((best.parent / f"trial-{n}/outcome.json").read_text())["score"] for n in range(3)
    ]
    assert scores[1] == max(scores) and scores[0] == scores[2] < 0


@pytest.mark.slow
def test_no_output_and_no_public_file_names_or_counts_a_trial(
    workspace: Workspace, outcome: Outcome
) -> None:
    lines, results = outcome.err.splitlines(), outcome.out.splitlines()
    assert [line.partition(": ")[2].partition(":")[0] for line in lines] == [
        "delta = 0.01 is above 1/(10*num_examples) = 0.0025", "reproducible", "number of trials",
    ]  # fmt: skip
    kinds = dict.fromkeys(line.partition(":")[0] for line in results)
    assert list(kinds) == ["trained", "privacy", "scores", "report", "next"]
    public = public_files(workspace.root / "run")
    assert not [name for name in public if "tuning" in name or "trial" in name]
    for path in public.values():
        text = path.read_bytes().decode("latin-1")
        assert not re.search(r"trial-|trial \d|trials.json|private/tuning", text), path
    log = (workspace.root / "run/private/tuning/trial-0/log").read_text()
    assert "INFO: steps 1 to 2: no progress is shown" in log


@pytest.mark.slow
def test_what_the_search_keeps_is_the_owners_alone(workspace: Workspace, outcome: Outcome) -> None:
    private = workspace.root / "run" / "private"
    for path in (private, *private.rglob("*")):
        allowed = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == allowed, path
    for path in public_files(workspace.root / "run").values():
        assert stat.S_IMODE(path.stat().st_mode) != 0o600, path


@pytest.mark.slow
def test_a_search_that_has_ended_is_left_alone_and_its_folder_is_taken(
    workspace: Workspace, outcome: Outcome
) -> None:
    again = workspace.run("tune", "resume=run")
    assert (again.code, again.new) == (0, frozenset())
    assert "is already complete" in again.err
    training = ("train", *SETTING, "privacy.noise_multiplier=1")
    for words in (training, ("tune", *SEARCH)):
        taken = workspace.run(*words, "hydra.run.dir=run")
        assert taken.code == 2
        assert "dpft tune resume=" in taken.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "function", "call", "error", "code"),
    [
        # Between the second trial's end and the third one's beginning.
        (tuning, "train_run", 3, KeyboardInterrupt(), 130),
        # Inside the second trial, after its training.
        (train, "report", 2, KeyboardInterrupt(), 130),
        (train, "report", 2, OSError(errno.ENOSPC, "No space left on device", "x"), 1),
        # What a trial needs is gone for a while.
        (text, "load_tokenizer", 2, InputError("model.path must be a folder."), 2),
        (tuning, "publish", 1, KeyboardInterrupt(), 130),
    ],
)
def test_a_search_that_broke_off_goes_on_without_a_trial_run_twice_or_drawn_anew(
    workspace: Workspace,
    outcome: Outcome,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    function: str,
    call: int,
    error: BaseException,
    code: int,
) -> None:
    name = f"cut-{function}-{code}"
    with monkeypatch.context() as patch:
        patch.setattr(owner, function, breaking(getattr(owner, function), call, error))
        broken = workspace.run("tune", *SEARCH, f"hydra.run.dir={name}")
    assert broken.code == code, broken.err
    assert f"to resume: dpft tune resume={name}" in broken.err
    assert not re.search(r"trial-|dpft train", broken.err)
    private = workspace.root / name / "private/tuning"
    drawn = (private / "trials.json").read_bytes()
    ended = {path: path.stat().st_mtime_ns for path in private.glob("trial-*/outcome.json")}
    assert not (workspace.root / name / "ledger.jsonl").exists()
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "draw_count", None)
        resumed = workspace.run("tune", f"resume={name}")
    assert resumed.code == 0, resumed.err
    assert (private / "trials.json").read_bytes() == drawn
    assert all(path.stat().st_mtime_ns == then for path, then in ended.items())
    whole, cut = (public_files(workspace.root / folder) for folder in ("run", name))
    for file in ("model/model.safetensors", "metrics.json", "privacy.json", "ledger.jsonl"):
        assert unnamed(whole[file]) == unnamed(cut[file])


@pytest.mark.slow
def test_a_trial_that_crashes_or_diverges_counts_as_the_worst(
    workspace: Workspace, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    for call, error in ((2, RunError("weights are not finite.")), (2, ZeroDivisionError("oh"))):
        name = f"crash-{type(error).__name__}"
        with monkeypatch.context() as patch:
            patch.setattr(loop, "train", breaking(loop.train, call, error))
            crashed = workspace.run("tune", *SEARCH, f"hydra.run.dir={name}")
        assert crashed.code == 0, crashed.err
        assert len(crashed.err.splitlines()) == len(outcome.err.splitlines())
        trials = workspace.root / name / "private/tuning"
        assert json.loads((trials / "trial-1/outcome.json").read_text()).get("score") is None
        assert str(error) in (trials / "trial-1/log").read_text()
        assert "learning_rate: 0.0001" in (workspace.root / name / "config.yaml").read_text()


@pytest.mark.slow
def test_trust_rule_4_a_trial_that_diverges_or_fails_keeps_no_generator_states(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second trial's learning rate overflows in its first step, the third one fails later."""
    rates = (0.0001, 1e39, 0.03)
    settings = [{**SETTINGS[0], "train.learning_rate": rate} for rate in rates]
    monkeypatch.setattr(tuning, "draw_settings", lambda space, number, stream: settings)
    fails = breaking(Diagnostics.write, 3, ZeroDivisionError("oh"))
    monkeypatch.setattr(Diagnostics, "write", fails)
    space = "tuning.space.train.learning_rate=[0.0001,1e39,0.03]"
    done = workspace.run("tune", *SEARCH, WITHOUT_TEXTS, space, "hydra.run.dir=diverged")
    assert done.code == 0, done.err
    trials = workspace.root / "diverged/private/tuning"
    scores = [json.loads((trials / f"trial-{n}/outcome.json").read_text()) for n in range(3)]
    assert ["score" in one for one in scores] == [True, False, False]
    assert "overflow" in (trials / "trial-1/log").read_text()
    assert all(list(trials.glob(f"trial-{n}/private/checkpoints/step-*")) for n in range(3))
    assert not list((workspace.root / "diverged").rglob(KEYS))


@pytest.mark.slow
def test_trust_rule_4_states_that_a_kill_left_behind_an_outcome_go_when_the_search_goes_on(
    workspace: Workspace, outcome: Outcome
) -> None:
    copy = workspace.root / "left"
    shutil.copytree(workspace.root / "run", copy)
    (copy / "privacy.json").unlink()
    (checkpoint,) = (copy / "private/tuning/trial-0/private/checkpoints").iterdir()
    (checkpoint / KEYS).write_text("{}")
    again = workspace.run("tune", "resume=left")
    assert again.code == 0, again.err
    assert not list(copy.rglob(KEYS))


@pytest.mark.slow
def test_a_search_without_a_score_ends_with_an_error_and_publishes_nothing(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise RunError("weights are not finite.")

    monkeypatch.setattr(loop, "train", fails)
    failed = workspace.run("tune", *SEARCH, WITHOUT_TEXTS, "hydra.run.dir=failed")
    assert failed.code == 1
    assert "private/tuning" in failed.err
    assert not [name for name in public_files(workspace.root / "failed") if "hydra" not in name]


@pytest.mark.slow
def test_trust_rule_4_every_trial_of_a_search_has_keys_of_its_own(
    tmp_path: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials 0 and 2 try the same setting: with one key they would share all their noise."""
    keys: list[bytes] = []

    def recorded(*arguments: Any, **options: Any) -> Randomness:
        made = make_randomness(*arguments, **options)
        keys.extend(key.at(0) for key in made._keys.values())
        return made

    monkeypatch.setattr(start, "make_randomness", recorded)
    search = [each for each in SEARCH if not each.startswith("privacy.noise_seed")]
    done = workspace.run("tune", *search, WITHOUT_TEXTS, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.code == 0, done.err
    assert len(keys) == len(set(keys)) == 3 * len(PURPOSES)


@pytest.mark.slow
def test_a_search_goes_on_with_the_records_that_it_began_with_alone(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "train_run", breaking(tuning.train_run, 1, KeyboardInterrupt()))
        assert workspace.run("tune", *SEARCH, "hydra.run.dir=bound").code == 130
    data = workspace.root / "data" / "train.jsonl"
    whole = data.read_text()
    data.write_text("".join(reversed(whole.splitlines(keepends=True))))
    refused = workspace.run("tune", "resume=bound")
    data.write_text(whole)
    assert refused.code == 2 and "training records" in refused.err


def test_what_is_no_search_has_none_to_go_on_with(tmp_path: Path) -> None:
    with rejects("resume", str(tmp_path)):
        resumed_search(str(tmp_path))


@pytest.mark.slow
def test_the_winner_has_the_day_on_which_the_search_was_begun(
    workspace: Workspace, outcome: Outcome
) -> None:
    """A trial's own day would tell how many there were before it."""
    copy = workspace.root / "dated"
    shutil.copytree(workspace.root / "run", copy)
    begun = json.loads((copy / "private/begun.json").read_text())
    (copy / "private/begun.json").write_text(json.dumps({**begun, "date": "2001-02-03"}))
    (copy / "privacy.json").unlink()
    again = workspace.run("tune", "resume=dated")
    assert again.code == 0, again.err
    assert json.loads((copy / "privacy.json").read_text())["date"] == "2001-02-03"
    assert "Started: 2001-02-03" in (copy / "report.md").read_text()


@pytest.mark.slow
def test_processes_of_torchrun_do_not_search_each_on_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with rejects("parallel", "none"):
        tuning.run(command("task=e2e"), tmp_path / "search")
    assert not list(tmp_path.iterdir())


def test_prints_logs_and_what_c_code_writes_go_to_a_private_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    handlers = list(logging.getLogger().handlers)
    with output_redirected_to(path):
        print("a print")
        print("an error", file=sys.stderr)
        logging.getLogger("dpft.x").warning("a log line")
        os.write(1, b"from C\n")
        os.write(2, b"from C, an error\n")
    print("after")
    assert logging.getLogger().handlers == handlers
    out, err = capfd.readouterr()
    assert (out, err) == ("after\n", "")
    lines = set(path.read_text().splitlines())
    assert lines == {"a print", "an error", "WARNING: a log line", "from C", "from C, an error"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
