"""Processes of one run that are told to end: all of them do, and the run goes on bit by bit."""

import signal
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from dpft.run_folder import PRIVACY, REPORT
from dpft.training.checkpoint import find_resume_point
from tests.stories.ranks import (
    MINUTE,
    SECONDS,
    children,
    is_there,
    kill,
    run_ranks,
    started,
    torchrun,
)  # fmt: skip
from tests.stories.ranks import wait_until as wait
from tests.stories.test_lost_ranks import RUN, SAME, count
from tests.stories.tiny import Workspace, make_workspace, unnamed

pytestmark = pytest.mark.slow
SAME_WHATEVER_RANKS_HOLD = [name for name in SAME if name != "privacy.json"]
LAUNCHED = ("launch=local", "launch.processes=2")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with a finished run ``whole`` of two processes."""
    made = make_workspace(tmp_path_factory.mktemp("ending"))
    run_ranks(made.root, "train", *RUN, "parallel=ddp", "hydra.run.dir=whole")
    return made


def go(workspace: Workspace, *words: str, code: int = 0) -> str:
    """Run a command to its end; return what is said."""
    with started(workspace.root, ["-m", "dpft", *words]) as process:
        assert process.wait(SECONDS) == code, (workspace.root / "log").read_text()
    return (workspace.root / "log").read_text()


def stopped(
    workspace: Workspace,
    command: list[str],
    folder: Path,
    number: int,
    *,
    who: int | None,
    lines: int = 5,
) -> tuple[int, str]:
    """Return how a command ends, and what is said, that is sent a signal in its steps.

    Args:
        workspace: Where it runs.
        command: What starts the processes.
        folder: Of the run.
        number: The signal.
        who: Rank of the process that it is sent to; None: the one that started the others.
        lines: Lines of the ledger to wait for; 0: processes are still loading.
    """
    with started(workspace.root, command) as process:
        wait(lambda: len(children(process.pid)) == 2 and count(folder / "ledger.jsonl") >= lines)
        workers = children(process.pid)
        if not lines:
            time.sleep(3)
        target = process.pid if who is None else workers[who]
        kill(target, number)
        code = process.wait(MINUTE)
        wait(lambda: not any(map(is_there, workers)), MINUTE)
    return code, (workspace.root / "log").read_text()


def check_goes_on(workspace: Workspace, name: str, strategy: str) -> None:
    """Go on with a run, to what replicas leave: also shards, but for what they say of it."""
    run_ranks(workspace.root, "train", f"resume={name}", f"parallel={strategy}")
    check_same(workspace, name, SAME if strategy == "ddp" else SAME_WHATEVER_RANKS_HOLD)


def check_same(workspace: Workspace, name: str, files: Iterable[str] = SAME) -> None:
    for file in files:
        whole = workspace.root / "whole" / file
        assert unnamed(workspace.root / name / file) == unnamed(whole)


@pytest.mark.exhaustive  # tests/training/test_session_faults.py has it in forked processes
@pytest.mark.parametrize(("who", "strategy"), [(0, "ddp"), (1, "ddp"), (1, "fsdp")])
def test_sigterm_to_one_rank_ends_all_after_the_step_with_a_checkpoint(
    workspace: Workspace, who: int, strategy: str
) -> None:
    name = f"rank-{who}-{strategy}"
    command = torchrun(["train", *RUN, f"parallel={strategy}", f"hydra.run.dir={name}"])
    folder = workspace.root / name
    _, said = stopped(workspace, command, folder, signal.SIGTERM, who=who)
    assert "exitcode  : 143" in said, said  # of the other, torchrun may say that it ended it
    assert f"dpft: to resume: dpft train resume={name} launch=local launch.processes=2\n" in said
    point = find_resume_point(folder)
    assert point.ledger is not None
    assert point.checkpoint.step == point.ledger.steps
    check_goes_on(workspace, name, strategy)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_who_started_the_processes_ends_them_and_says_nothing_itself(
    workspace: Workspace, number: int, code: int
) -> None:
    name = f"launched-{code}"
    command = ["-m", "dpft", "train", *RUN, *LAUNCHED, f"hydra.run.dir={name}"]
    found, said = stopped(workspace, command, workspace.root / name, number, who=None)
    assert found == code, said
    assert said.count("INFO: training model") == said.count("dpft: to resume: ") == 1
    said += go(workspace, "train", f"resume={name}", *LAUNCHED)
    assert "Traceback" not in said
    assert not list(workspace.root.rglob("*torchelastic*"))
    check_same(workspace, name)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_that_ended_but_for_its_reports_is_finished_on_all_ranks(
    workspace: Workspace, strategy: str
) -> None:
    name = f"unreported-{strategy}"
    run_ranks(workspace.root, "train", *RUN, f"parallel={strategy}", f"hydra.run.dir={name}")
    folder = workspace.root / name
    ledger = (folder / "ledger.jsonl").read_bytes()
    for file in (REPORT, PRIVACY):
        (folder / file).unlink()
    check_goes_on(workspace, name, strategy)
    assert (folder / REPORT).exists() and (folder / "ledger.jsonl").read_bytes() == ledger


def test_a_killed_rank_ends_the_others_in_one_sentence_each_and_leaves_no_folder(
    workspace: Workspace,
) -> None:
    """While they load, when nothing is there to go on with."""
    command = ["-m", "dpft", "train", *RUN, *LAUNCHED, "hydra.run.dir=gone"]
    folder = workspace.root / "gone"
    code, said = stopped(workspace, command, folder, signal.SIGKILL, who=1, lines=0)
    assert code == 1, said
    assert said.count("was killed by SIGKILL") == 1
    assert "Traceback" not in said
    assert not folder.exists()


@pytest.mark.exhaustive
def test_sigterm_while_they_load_ends_all(workspace: Workspace) -> None:
    command = ["-m", "dpft", "train", *RUN, *LAUNCHED, "hydra.run.dir=early"]
    folder = workspace.root / "early"
    code, said = stopped(workspace, command, folder, signal.SIGTERM, who=0, lines=0)
    assert code == 143, said
    assert "Traceback" not in said
    assert not folder.exists()


@pytest.mark.exhaustive
def test_bad_input_is_one_sentence_with_the_exit_code_of_one_process(workspace: Workspace) -> None:
    said = go(workspace, "train", *RUN, *LAUNCHED, "hydra.run.dir=whole", code=2)
    assert [line for line in said.splitlines() if "INFO: " not in line][-1].startswith(
        "dpft: error: "
    )
    assert said.count("dpft: error: ") == 1
    assert "Traceback" not in said
