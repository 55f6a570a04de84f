"""A rank killed before, in or after a collective: the other says so and ends, and the run goes on.

The processes are started without torchrun, which would end the other rank itself.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from torch import Tensor

from dpft.cli.main import main
from dpft.parallel.ranks import Ranks
from dpft.run_folder import CHECKPOINTS
from dpft.training.checkpoint import checkpoints
from tests.slowness import exhaustive_but
from tests.stories.ranks import MINUTE, become_rank, fork_ranks, join, logs
from tests.stories.tiny import EVALUATION, TRAINING, Workspace, make_workspace, unnamed

pytestmark = pytest.mark.slow

RUN = (
    "train", *TRAINING, "train.steps=5", "train.checkpoint_every=2", "privacy.noise_multiplier=1",
    "privacy.noise_seed=3", *EVALUATION,
)  # fmt: skip
MOMENTS = ("before", "in", "after")
KILLS = 10
SAME = ("ledger.jsonl", "privacy.json", "metrics.json", "model/model.safetensors")
SENTENCE = "dpft: error: another process of the run ended or cannot be reached"
Kill = tuple[int, int, str]
"""Rank, number of the collective, and the moment."""


def start(root: Path, words: tuple[str, ...], kill: Kill | None = None) -> list[BaseProcess]:
    """Start the two ranks of ``dpft words``, of which one may be killed."""
    return fork_ranks(root, words, kill, target=command)


def command(root: Path, words: tuple[str, ...], rank: int, port: int, kill: Kill | None) -> None:
    """Run ``dpft words`` as one rank, and leaves how many collectives there were."""
    become_rank(root, rank, port)
    calls = count_collectives(rank, kill)
    code = main(list(words))
    Path(f"collectives-{rank}").write_text(str(len(calls)))
    raise SystemExit(code)


def count_collectives(rank: int, kill: Kill | None) -> list[str]:
    """Return the kinds of collectives, filled as they are called; at one the rank may die."""
    calls: list[str] = []
    whole = Ranks.call

    def call(ranks: Ranks, kind: str, collective: Callable[[], object], sent: Tensor) -> None:
        calls.append(kind)
        killed, number, moment = kill or (0, 0, "")
        if len(calls) != number:
            whole(ranks, kind, collective, sent)
        elif rank != killed:
            if moment == "in":
                time.sleep(0.5)  # The other one waits inside of it by then.
            whole(ranks, kind, collective, sent)
        elif moment == "in":
            threading.Timer(0.2, die).start()
            whole(ranks, kind, collective, sent)
            die()
        else:
            if moment == "after":
                whole(ranks, kind, collective, sent)
            die()

    Ranks.call = call  # type: ignore[method-assign]  # of a process of its own
    return calls


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(
    scope="module", params=exhaustive_but(["parallel=fsdp"], ["parallel=fsdp", "parallel=ddp"])
)
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Workspace, str]:
    """A workspace with a finished run ``whole`` of two ranks, and their strategy."""
    made = make_workspace(tmp_path_factory.mktemp("killed"))
    words = (*RUN, request.param, "hydra.run.dir=whole")
    assert join(start(made.root, words)) == [0, 0], logs(made.root)
    return made, request.param


def moments(collectives: int) -> list[Kill]:
    """Return who is killed when, spread over all of a run's collectives."""
    choice = random.Random(5)
    width = collectives / KILLS
    numbers = [1 + int(width * (place + choice.random())) for place in range(KILLS)]
    return [(at % 2, number, MOMENTS[at % 3]) for at, number in enumerate(numbers)]


@pytest.mark.parametrize("at", range(KILLS))
def test_a_killed_rank_is_missed_in_one_sentence_and_the_run_goes_on(
    finished: tuple[Workspace, str], at: int
) -> None:
    workspace, strategy = finished
    root = workspace.root
    counts = {(root / f"collectives-{rank}").read_text() for rank in range(2)}
    (count,) = counts  # Every rank calls the same ones.
    killed, number, moment = moments(int(count))[at]
    name = f"killed-{at}"
    words = (*RUN, strategy, f"hydra.run.dir={name}")
    counted = [(root / f"collectives-{rank}").rename(root / f"kept-{rank}") for rank in range(2)]
    codes = join(start(root, words, (killed, number, moment)), MINUTE)
    assert codes[killed] == -signal.SIGKILL
    other = (root / f"log-{1 - killed}").read_text()
    has_ended = codes[1 - killed] == 0  # Killed after the last word between the two.
    assert codes[1 - killed] == 1 or has_ended and int(count) - number < 2, other
    assert other.count(SENTENCE) == (not has_ended), other
    assert "Traceback" not in other
    begun = checkpoints(root / name / CHECKPOINTS)  # Without one, the same words begin it anew.
    codes = join(start(root, ("train", f"resume={name}", strategy) if begun else words))
    for rank, path in enumerate(counted):
        path.rename(root / f"collectives-{rank}")
    assert codes == [0, 0], logs(root)
    for file in SAME:
        assert unnamed(root / name / file) == unnamed(root / "whole" / file)
