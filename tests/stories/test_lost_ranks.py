"""Ranks that are killed at random moments under torchrun, which starts all of them anew."""

import os
import random
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from dpft.privacy.ledger import read_ledger
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
from tests.stories.tiny import EVALUATION, TRAINING, Workspace, make_workspace, unnamed

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("DPFT_KILLED_RANKS", "3"))
"""More by hand: DPFT_KILLED_RANKS=10."""
STEPS, SIZE = 10 * KILLS + 10, 2
RUN = (
    *TRAINING, f"train.steps={STEPS}", "train.checkpoint_every=3", "privacy.noise_multiplier=1",
    "privacy.noise_seed=3", *EVALUATION,
)  # fmt: skip
LAST = "after training"
MOMENTS = ("loading", "a step", "a checkpoint")
SAME = ("ledger.jsonl", "privacy.json", "metrics.json", "model/model.safetensors")


STRATEGIES = ("parallel=ddp", "parallel=fsdp")
Finished = tuple[Workspace, str]


@pytest.fixture(scope="module", params=STRATEGIES)
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A workspace with a finished run ``whole`` of two processes, and its strategy."""
    made = make_workspace(tmp_path_factory.mktemp("lost"))
    run_ranks(made.root, "train", *RUN, request.param, "hydra.run.dir=whole")
    return made, request.param


@pytest.mark.exhaustive
def test_killed_ranks_start_anew_by_themselves_and_nothing_shows_it(finished: Finished) -> None:
    workspace, strategy = finished
    choice, folder = random.Random(11), workspace.root / "killed"
    command = torchrun(
        ["train", *RUN, strategy, "resume=auto", "hydra.run.dir=killed"], restarts=KILLS
    )
    found = Counter[str]()
    with started(workspace.root, command, "killed.log") as agent:
        before: list[int] = []
        for number in range(KILLS):
            workers = new_workers(agent, before)
            name = LAST if number == KILLS - 1 > 2 else MOMENTS[number % len(MOMENTS)]
            moment(name, folder, workers, choice)
            rank = choice.randrange(SIZE)
            kill(workers[rank])
            found[f"{name}, rank {rank}"] += 1
            wait(lambda: not any(map(is_there, workers)), MINUTE)  # noqa: B023
            before = workers
        assert agent.wait(SECONDS) == 0, (workspace.root / "killed.log").read_text()
    print(dict(found))
    for name in SAME:
        assert unnamed(folder / name) == unnamed(workspace.root / "whole" / name)
    assert read_ledger(folder / "ledger.jsonl").steps == STEPS


def new_workers(agent: subprocess.Popen[bytes], before: list[int]) -> list[int]:
    """Return the processes that the agent has started since those before."""
    wait(
        lambda: (
            agent.poll() is not None
            or len([pid for pid in children(agent.pid) if pid not in before]) == SIZE
        )
    )
    assert agent.poll() is None, "the run has ended before all were killed"
    return [pid for pid in children(agent.pid) if pid not in before]


def moment(name: str, folder: Path, workers: list[int], choice: random.Random) -> None:
    """Wait for a moment of a run, or for an end of it."""
    ledger, checkpoints = folder / "ledger.jsonl", folder / "private" / "checkpoints"

    def ended() -> bool:
        return not all(map(is_there, workers))

    def writes() -> bool:
        return any(checkpoints.glob(".*.partial"))

    if name == "loading":
        time.sleep(choice.uniform(0, 12))
        return
    lines = count(ledger) + choice.randint(1, 8)
    closed = STEPS + 1
    wait(lambda: ended() or count(ledger) >= min(lines, closed))
    if name == "a checkpoint":
        wait(lambda: ended() or writes() or count(ledger) == closed)
    elif name == LAST:
        wait(lambda: ended() or count(ledger) == closed)
        time.sleep(choice.uniform(0, 0.5))
    else:
        time.sleep(choice.uniform(0, 0.05))


def count(ledger: Path) -> int:
    """Return the lines of a ledger."""
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0
