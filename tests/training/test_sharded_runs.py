"""Whole training of models in shards, broken off and gone on with on as many ranks or others."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dpft.parallel.ranks import ALONE
from dpft.privacy.ledger import read_ledger
from dpft.run_folder import CHECKPOINTS, LEDGER
from dpft.training.checkpoint import checkpoints, find_resume_point
from tests.parallel.forked import LOST, on_ranks
from tests.parallel.small_steps import Case
from tests.training.shared_training import (
    Training,
    check_alike,
    train_on,
    train_ordinarily_on,
)

pytestmark = pytest.mark.slow

LONG = Case(noise_multiplier=1.0, steps=5, shard_size=2)


def broken_off(folder: Path, size: int, case: Case = LONG) -> Training:
    """A run with dropout that all ranks died of after step 3 of 5, checkpoint 2 behind it."""
    folder.mkdir()
    run = Training(folder=folder, case=case, dropout=0.3)
    answers = on_ranks(train_on, size, replace(run, broken_after=3), dying=range(size))
    assert answers == [LOST] * size
    return replace(run, goes_on=True)


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("method", "size", "accumulates_shards"),
    [
        (method, size, accumulates)
        for method in ("full", "two_phase", "rgp", "lora")
        for size in (2, 4)
        for accumulates in (False, True)
    ],
)
def test_a_run_that_goes_on_is_bit_identical_to_an_undisturbed_one(
    method: str, size: int, accumulates_shards: bool, tmp_path: Path
) -> None:
    """Step 3 is taken again on every rank, with the noise and the masks that it had."""
    case = replace(LONG, method=method, accumulates_shards=accumulates_shards)
    broken = broken_off(tmp_path / "broken", size, case)
    undisturbed = replace(broken, folder=made(tmp_path / "whole"), goes_on=False)
    expected = on_ranks(train_on, size, undisturbed)
    check_alike([*expected, *on_ranks(train_on, size, broken)])
    assert read_ledger(broken.folder / LEDGER).steps == 5


@pytest.mark.parametrize("shard_size", [2, None])
def test_noise_that_hangs_together_goes_on_from_each_ranks_own_history(
    shard_size: int | None, tmp_path: Path
) -> None:
    """In shards and whole: the same bits, and nothing of it left at the end."""
    case = replace(LONG, bands=2, shard_size=shard_size, accumulates_shards=shard_size is not None)
    broken = broken_off(tmp_path / "broken", 2, case)
    (path,) = checkpoints(broken.folder / CHECKPOINTS)
    assert len(list(path.glob("noise-*-of-00002.safetensors"))) == 2
    undisturbed = replace(broken, folder=made(tmp_path / "whole"), goes_on=False)
    check_alike([*on_ranks(train_on, 2, undisturbed), *on_ranks(train_on, 2, broken)])
    assert read_ledger(broken.folder / LEDGER).streams == (5,)
    assert not list(broken.folder.rglob("noise*"))


AFTERWARDS = {
    "more ranks": (4, 2),
    "other shards": (2, 1),
    "whole on each": (2, None),
    "one process": (1, None),
}
HOLDING = {
    "more ranks": "fsdp, 2 shards x 2 replicas, gradient sums not sharded",
    "other shards": "fsdp, 1 shards x 2 replicas, gradient sums not sharded",
    "whole on each": "none",
    "one process": None,
}


@pytest.mark.parametrize("after", AFTERWARDS)
def test_on_other_ranks_or_shards_new_noise_is_drawn_and_counted(
    after: str, tmp_path: Path
) -> None:
    """And the checkpoint's environment says what each rank holds."""
    run = broken_off(tmp_path / "broken", 2)
    check_reseeded(run, *AFTERWARDS[after])
    processes = find_resume_point(run.folder).checkpoint.run.environment["processes"]
    assert processes.get("sharding") == HOLDING[after]


def test_a_run_of_one_process_goes_on_in_shards_with_new_noise(tmp_path: Path) -> None:
    run = broken_off(tmp_path / "broken", 1, replace(LONG, shard_size=None))
    check_reseeded(run, 2, 2)


def test_a_step_that_does_not_come_out_as_it_was_gets_new_noise(tmp_path: Path) -> None:
    """All ranks go back to the checkpoint together."""
    run = broken_off(tmp_path / "broken", 2)
    check_reseeded(replace(run, changed_record=True), 2, 2)


def check_reseeded(run: Training, size: int, shard_size: int | None) -> None:
    run = replace(run, case=replace(run.case, shard_size=shard_size))
    check_alike([train_on(ALONE, run)] if size == 1 else on_ranks(train_on, size, run))
    assert read_ledger(run.folder / LEDGER).steps == 3 + 3


@pytest.mark.parametrize("clips", [False, True])
def test_weights_without_privacy_equal_those_of_one_process(clips: bool, tmp_path: Path) -> None:
    case = replace(LONG, steps=3)
    alone = Training(folder=made(tmp_path / "alone"), case=case, clips=clips)
    expected = train_ordinarily_on(ALONE, alone)
    shared = replace(alone, folder=made(tmp_path / "shared"))
    first, *others = on_ranks(train_ordinarily_on, 2, shared)
    check_alike([first, *others])
    for name, weights in expected.items():
        torch.testing.assert_close(first[name], weights, atol=1e-5, rtol=0)
    (path,) = checkpoints(shared.folder / CHECKPOINTS)
    assert len(list(path.glob("*-of-00002.safetensors"))) == 4
