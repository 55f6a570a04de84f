"""Runs that are told to end, in each of their phases, and two processes at one folder."""

import os
import signal
from collections.abc import Iterator
from itertools import product
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from dpft.commands import closing_summary as run_ending
from dpft.commands import scoring
from dpft.privacy.journal import JournaledLedger
from dpft.training import training_run, training_state
from dpft.training.checkpoint import find_resume_point
from tests.slowness import exhaustive_but
from tests.stories.murder import SECONDS, start, wait_until
from tests.stories.test_resume import RUN, files
from tests.stories.tiny import Outcome, Workspace, make_workspace

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, shared_accounting: None) -> Workspace:
    """A workspace with a finished run ``whole``."""
    made = make_workspace(tmp_path_factory.mktemp("signals"))
    made.finished(*RUN, "hydra.run.dir=whole")
    return made


def told(
    workspace: Workspace, folder: str, owner: Any, name: str, call: int, *signals: int
) -> Outcome:
    """Run a command that is sent signals just before the ``call``-th call of a function."""
    whole, calls = getattr(owner, name), list[None]()

    def then(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        if len(calls) == call:
            for number in signals:
                os.kill(os.getpid(), number)
        return whole(*args, **kwargs)

    words = [f"resume={folder}"] if (workspace.root / folder).exists() else [*RUN]
    words += [] if words[0].startswith("resume=") else [f"hydra.run.dir={folder}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, then)
        return workspace.run("train", *words)


def check_goes_on(workspace: Workspace, folder: str) -> None:
    outcome = workspace.run("train", f"resume={folder}")
    assert outcome.code == 0, outcome.err
    assert files(workspace.root / folder) == files(workspace.root / "whole")


TERM, INT = signal.SIGTERM, signal.SIGINT
PHASES = {
    "a step": (JournaledLedger, "record_step", 3, 3),
    "the last step": (JournaledLedger, "record_step", 5, 5),
    "a checkpoint": (training_state, "save_file", 3, 2),
    "the evaluation": (scoring, "score_model", 2, 5),
    "the scores": (run_ending, "write_scores", 1, 5),
    "the report": (run_ending, "write_report", 1, 5),
}
"""Function that the signal comes before, the number of its call, and the step then finished."""


@pytest.mark.parametrize(
    ("times", "phase"),
    exhaustive_but([*product([1], PHASES), (2, "a step")], product([1, 2], PHASES)),
)
def test_sigterm_once_or_twice_ends_a_run_with_143_and_says_how_to_go_on(
    workspace: Workspace, times: int, phase: str
) -> None:
    owner, name, call, step = PHASES[phase]
    folder = f"{phase.replace(' ', '-')}-{times}"
    outcome = told(workspace, folder, owner, name, call, *[TERM] * times)
    assert outcome.code == 143, outcome.err
    assert f"dpft: to resume: dpft train resume={folder}\n" in outcome.err
    assert "Traceback" not in outcome.err
    resume_point = find_resume_point(workspace.root / folder)
    assert resume_point.ledger is not None
    assert resume_point.checkpoint.step == resume_point.ledger.steps == step
    check_goes_on(workspace, folder)


@pytest.mark.parametrize("phase", exhaustive_but(("a step", "a checkpoint", "the report"), PHASES))
def test_an_interrupt_ends_a_run_with_130_in_every_phase(workspace: Workspace, phase: str) -> None:
    owner, name, call, _ = PHASES[phase]
    folder = f"{phase.replace(' ', '-')}-interrupted"
    outcome = told(workspace, folder, owner, name, call, INT)
    assert outcome.code == 130, outcome.err
    assert outcome.err.endswith(f"dpft: to resume: dpft train resume={folder}\ndpft: interrupted\n")
    check_goes_on(workspace, folder)


def test_an_interrupt_of_a_checkpoint_after_sigterm_leaves_the_one_before(
    workspace: Workspace,
) -> None:
    """SIGTERM asks for a checkpoint, and Ctrl-C comes while it is written."""
    outcome = told(workspace, "both", training_state, "save_file", 3, TERM, INT)
    assert outcome.code in (130, 143), outcome.err
    assert "dpft: to resume: dpft train resume=both" in outcome.err
    assert find_resume_point(workspace.root / "both").checkpoint.step == 0
    check_goes_on(workspace, "both")


def test_a_resume_that_is_told_to_end_can_be_resumed(workspace: Workspace) -> None:
    first = told(workspace, "often", training_run, "per_example_losses", 2, TERM)
    again = told(workspace, "often", training_run, "per_example_losses", 1, TERM)
    assert (first.code, again.code) == (143, 143), again.err
    assert "dpft: to resume: dpft train resume=often" in again.err
    check_goes_on(workspace, "often")


class Worker:
    """A process that stops at a moment of its run and stays there."""

    def __init__(self, root: Path) -> None:
        self._root, self._process = root, list[BaseProcess]()

    def start(self, arguments: list[str], aim: str, call: int) -> None:
        """Start it anew, and wait until it has stopped."""
        self.end()
        mark = self._root / "waiting"
        mark.unlink(missing_ok=True)
        self._process = [start(self._root, ["train", *arguments], aim, call)]
        wait_until(self._process[0], mark.exists)
        assert mark.exists(), (self._root / "log").read_text()

    def end(self) -> None:
        """Kill it."""
        for process in self._process:
            process.kill()
            process.join(SECONDS)


@pytest.fixture
def worker(workspace: Workspace) -> Iterator[Worker]:
    made = Worker(workspace.root)
    yield made
    made.end()


def refused(workspace: Workspace, *arguments: str) -> str:
    """Return what a command says that must not touch a folder in use."""
    folder = workspace.root / "shared"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    outcome = workspace.run(*arguments)
    assert outcome.code == 2, outcome.err
    assert "dpft: error: " in outcome.err.splitlines()[-1]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    return outcome.err


def test_two_processes_never_work_in_one_folder(workspace: Workspace, worker: Worker) -> None:
    """Before the first step, in it, in a resume, and in the evaluation after training."""
    new, resume = [*RUN, "hydra.run.dir=shared"], ["resume=shared"]
    worker.start(new, "waiting in an evaluation", 1)
    assert "in use by another dpft process" in refused(workspace, "train", *new)
    worker.start(new, "waiting in a step", 3)
    stops = [(), (resume, "waiting in a step", 3), (resume, "waiting in an evaluation", 1)]
    for stop in stops:
        if stop:
            worker.start(*stop)
        assert "in use by another dpft process" in refused(workspace, "train", *resume)
        assert "dpft train resume=" in refused(workspace, "train", *new)
        for command in ("eval", "export"):
            said = refused(workspace, command, "run=shared")
            assert "resume=shared" in said or "in use by another" in said
    worker.end()
    check_goes_on(workspace, "shared")
