"""Checkpoints of models in shards: written by all ranks, read by any number of them."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from dpft.errors import DpftError, RunError, SaidElsewhere
from dpft.parallel.ranks import ALONE, Ranks
from dpft.run_folder import KEYS, STATE
from dpft.training import training_state
from dpft.training.checkpoint import BoundRun, checkpoints, read_checkpoint
from dpft.training.optimizers import (
    SGD,
    Adafactor,
    AdamW,
    OptimizerConfig,
    check_works_on_shards,
)
from tests.parallel.forked import LOST, on_ranks
from tests.rejections import rejects
from tests.training.sharded_states import (
    restored,
    save_on,
    saved,
    state_on,
)
from tests.training.toy import plan, take_steps

ADAM, MOMENTUM = AdamW(), SGD(momentum=0.9)
WHOLE = (1, None)
GRIDS = [WHOLE, (2, 2), (4, 2), (4, 4)]
"""How many ranks, and how many shards."""
ALL = [
    (config, before, after)
    for config in (ADAM, MOMENTUM, SGD())
    for before in GRIDS
    for after in GRIDS
    if before != WHOLE or after != WHOLE
]


def on(grid: tuple[int, int | None], function: Callable[..., object], *args: object) -> list:
    size, shard_size = grid
    folder, config = args
    if size == 1:
        return [function(ALONE, folder, shard_size, config)]
    return on_ranks(function, size, folder, shard_size, config)


@pytest.mark.slow
@pytest.mark.parametrize(("config", "before", "after"), ALL, ids=str)
def test_any_number_of_ranks_and_shards_reads_what_any_other_wrote_bit_for_bit(
    config: OptimizerConfig,
    before: tuple[int, int | None],
    after: tuple[int, int | None],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "checkpoints"
    expected, *twins = on(before, saved, folder, config)
    (path,) = checkpoints(folder)
    for each in [*twins, *on(after, restored, path, config)]:
        each.check_same(expected)


@pytest.mark.slow
def test_each_shard_is_a_file_of_its_own_for_the_owner_alone(tmp_path: Path) -> None:
    """Of two replicas of two shards one is written, and what is whole is written once."""
    on_ranks(saved, 4, tmp_path / "checkpoints", 2, ADAM)
    (path,) = checkpoints(tmp_path / "checkpoints")
    shards = [
        f"{name}-0000{place}-of-00002.safetensors"
        for name in ("model", "optimizer")
        for place in (1, 2)
    ]
    assert {each.name for each in path.iterdir()} == {STATE, KEYS, *shards}
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in path.iterdir())
    state = json.loads((path / STATE).read_text())
    assert state["shards"] == 2 and state["checksums"].keys() == {KEYS, *shards}
    read = read_checkpoint(path)
    assert read.read_keys().original and read.run == BoundRun(plan=plan())
    with training_state.TensorFiles([path / shards[1]]) as second:
        assert "count" not in second.shapes
    with training_state.TensorFiles([path / shards[3]]) as second:
        assert not [name for name in second.shapes if name.endswith("/step")]


def refused(ranks: Ranks, path: Path) -> tuple[str, int, str | None]:
    """Return what restoring ends with: kind, exit code, and what this rank says of it."""
    try:
        restored(ranks, path, 2, ADAM)
    except SaidElsewhere as error:
        return error.kind, error.exit_code, error.to_say
    except DpftError as error:
        return type(error).__name__, error.exit_code, str(error)
    return "nothing", 0, None


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


SPOILT = [(name, how) for name in ("model", "optimizer") for how in ("damaged", "missing")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "how"), SPOILT)
def test_a_shard_that_is_damaged_or_gone_is_named_by_the_first_rank_and_ends_all(
    name: str, how: str, tmp_path: Path
) -> None:
    on_ranks(saved, 2, tmp_path / "checkpoints", 2, ADAM)
    (path,) = checkpoints(tmp_path / "checkpoints")
    shard = path / f"{name}-00002-of-00002.safetensors"
    flip(shard) if how == "damaged" else shard.unlink()
    first, second = on_ranks(refused, 2, path)
    assert first[:2] == ("StateError", 3)
    assert str(shard) in first[2]
    assert second == ("StateError", 3, None)


@pytest.mark.slow
def test_a_folder_that_a_rank_cannot_see_is_said_to_be_so(tmp_path: Path) -> None:
    """As where each machine has a disk of its own."""
    first, second = on_ranks(refused, 2, tmp_path / "elsewhere")
    assert first[:2] == ("RunError", 1) and str(tmp_path / "elsewhere") in first[2]
    assert second == ("RunError", 1, None)


def fails_in_the_second_checkpoint(ranks: Ranks, folder: Path, failing: int, how: str) -> str:
    """Return what saving ends with where a rank cannot write its part of a checkpoint."""
    state, shards = state_on(ranks, 2)
    save_on(ranks, folder, 0, state, shards)
    take_steps(state, 1)

    def fail(*_: object) -> None:
        if how == "dies":
            os._exit(1)
        raise RunError("the disk is full")

    if ranks.rank == failing:
        training_state.save_tensors = fail
    try:
        save_on(ranks, folder, 1, state, shards)
    except DpftError as error:
        return str(error)
    return "nothing"


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_cannot_write_ends_all_and_the_checkpoint_before_is_whole(
    failing: int, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    first, second = on_ranks(fails_in_the_second_checkpoint, 2, folder, failing, "full")
    assert first == "the disk is full"
    assert second == "another process of the run ended with RunError."
    check_first_one_is_whole(folder)


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_is_killed_while_it_writes_leaves_the_checkpoint_before_whole(
    failing: int, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    answers = on_ranks(fails_in_the_second_checkpoint, 2, folder, failing, "dies", dying=[failing])
    assert answers[failing] == LOST
    assert answers[1 - failing] != "nothing"
    check_first_one_is_whole(folder)


def check_first_one_is_whole(folder: Path) -> None:
    (path,) = checkpoints(folder)
    read = read_checkpoint(path)
    assert read.step == 0 and read.read_keys().original


def test_adafactor_whose_steps_need_whole_parameters_is_refused_by_name() -> None:
    check_works_on_shards(ADAM)
    with rejects("optimizer", "adafactor"):
        check_works_on_shards(Adafactor())
