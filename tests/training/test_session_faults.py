"""Whole training on several ranks, of which one fails, dies or is terminated in a step."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpft.errors import RunError
from dpft.parallel.rank_environment import TERMINATED
from dpft.parallel.ranks import Ranks
from dpft.privacy.engine import PrivacyEngine
from dpft.privacy.engine_results import MicroBatchResult
from dpft.privacy.journal import JournaledLedger
from dpft.privacy.ledger import read_ledger
from dpft.run_folder import LEDGER
from dpft.training import checkpoint as checkpoint_module
from dpft.training import loop as loop_module
from dpft.training import training_run
from dpft.training.checkpoint import find_resume_point
from dpft.training.optimizers import AdamW
from tests.parallel.forked import LOST, on_ranks
from tests.parallel.small_steps import Case
from tests.training.shared_training import Training, check_alike, ended_on, train_on

pytestmark = pytest.mark.slow

SAID = "one loss depends on another"
LONG = Case(noise_multiplier=1.0, steps=5)


def ended_by(
    ranks: Ranks, run: Training, failing: tuple[int, ...], act: Callable[[], None]
) -> tuple[str, str]:
    """Return what a run ends with on a rank where some ranks act in their second step."""
    accumulate = PrivacyEngine.accumulate

    def act_and_accumulate(engine: PrivacyEngine, *args: Any) -> MicroBatchResult:
        if ranks.rank in failing and engine.steps_taken == 1:
            act()
        return accumulate(engine, *args)

    PrivacyEngine.accumulate = act_and_accumulate
    return ended_on(ranks, run)


def fail() -> None:
    raise RunError(SAID)


def die() -> None:
    os._exit(1)


SAID_ELSEWHERE = ("SaidElsewhere", "another process of the run ended with RunError.")


@pytest.mark.parametrize("failing", [(1, 2), (1,), (0, 1, 2)])
def test_what_fails_in_a_step_is_said_by_one_rank_and_ends_all(
    failing: tuple[int, ...], tmp_path: Path
) -> None:
    """By the first, whoever failed, and before the step is in the ledger."""
    run = Training(folder=tmp_path, case=LONG)
    (kind, said), *others = on_ranks(ended_by, 3, run, failing, fail)
    assert said == SAID and kind == ("RunError" if 0 in failing else "SaidElsewhere")
    assert others == [SAID_ELSEWHERE] * 2
    assert read_ledger(tmp_path / LEDGER).steps == 1


def test_a_rank_that_dies_in_a_step_ends_the_others_before_it_is_in_the_ledger(
    tmp_path: Path,
) -> None:
    run = Training(folder=tmp_path, case=LONG)
    first, second = on_ranks(ended_by, 2, run, (1,), die, dying=[1])
    assert first[0] == "RankLost" and second == LOST
    assert read_ledger(tmp_path / LEDGER).steps == 1


def fails_to_save(ranks: Ranks, run: Training) -> tuple[str, str]:
    """Return what a run ends with on each rank where rank 0 cannot write its second checkpoint."""
    save, calls = training_run.save_checkpoint, list[None]()

    def save_once(*args: Any, **kwargs: Any) -> Path:
        calls.append(None)
        if len(calls) > 1:
            checkpoint_module.write_tensors = no_room
        return save(*args, **kwargs)

    def no_room(*_: Any) -> None:
        raise RunError("the disk is full")

    training_run.save_checkpoint = save_once
    return ended_on(ranks, run)


def test_a_checkpoint_that_rank_0_cannot_write_ends_the_others_with_its_error(
    tmp_path: Path,
) -> None:
    first, second = on_ranks(fails_to_save, 2, Training(folder=tmp_path, case=LONG))
    assert first == ("RunError", "the disk is full")
    assert second == SAID_ELSEWHERE


def moves_before_a_full_disk(ranks: Ranks, run: Training) -> tuple[str, int]:
    """Return what a run ends with whose second line cannot be written, and how often it moved."""
    record_step, check_weights = JournaledLedger.record_step, loop_module.check_weights
    moved = []

    def record_one(ledger: JournaledLedger, *args: Any) -> None:
        if ledger.position == 1:
            raise RunError("the disk is full")
        record_step(ledger, *args)

    def count(*args: Any) -> None:
        moved.append(args)
        check_weights(*args)

    JournaledLedger.record_step, loop_module.check_weights = record_one, count
    return ended_on(ranks, run)[1], len(moved)


def test_no_rank_moves_a_weight_before_the_step_is_in_the_ledger(tmp_path: Path) -> None:
    first, *others = on_ranks(moves_before_a_full_disk, 3, Training(folder=tmp_path, case=LONG))
    assert first == ("the disk is full", 1)
    assert others == [("another process of the run ended with RunError.", 1)] * 2


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("shard_size", [None, 2])
def test_sigterm_to_one_rank_ends_all_after_the_step_with_a_checkpoint(
    shard_size: int | None, tmp_path: Path
) -> None:
    case = replace(LONG, steps=4, shard_size=shard_size)
    run = Training(folder=tmp_path, case=case, optimizer=AdamW())
    answers = on_ranks(ended_by, 2, run, (1,), terminate)
    assert answers == [("SystemExit", str(TERMINATED))] * 2
    assert find_resume_point(tmp_path).checkpoint.step == 2
    check_alike(on_ranks(train_on, 2, replace(run, goes_on=True)))
    assert read_ledger(tmp_path / LEDGER).steps == 4
