"""Noise that hangs together on several ranks: each keeps its own, and all need all of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from dpft.privacy.ledger import read_ledger
from dpft.run_folder import HISTORY, LEDGER
from tests.parallel.forked import LOST, on_ranks
from tests.parallel.small_steps import Case
from tests.training.shared_training import Training, check_alike, train_on

pytestmark = pytest.mark.slow

LONG = Case(noise_multiplier=1.0, steps=5, bands=2)


def broken_off(folder: Path, size: int, case: Case = LONG) -> Training:
    """A run that all ranks died of after step 3 of 5, checkpoint 2 behind it."""
    folder.mkdir()
    run = Training(folder=folder, case=case)
    answers = on_ranks(train_on, size, replace(run, broken_after=3), dying=range(size))
    assert answers == [LOST] * size
    return replace(run, goes_on=True)


def histories(folder: Path) -> list[Path]:
    return sorted(folder.rglob(f"{Path(HISTORY).stem}*"))


@pytest.mark.parametrize(("size", "shard_size"), [(3, None), (4, 2)])
def test_a_run_that_goes_on_is_bit_identical_to_an_undisturbed_one(
    size: int, shard_size: int | None, tmp_path: Path
) -> None:
    broken = broken_off(tmp_path / "broken", size, replace(LONG, shard_size=shard_size))
    assert len(histories(broken.folder)) == size
    (tmp_path / "whole").mkdir()
    undisturbed = replace(broken, folder=tmp_path / "whole", goes_on=False)
    expected = on_ranks(train_on, size, undisturbed)
    check_alike([*expected, *on_ranks(train_on, size, broken)])
    assert read_ledger(broken.folder / LEDGER).streams == (5,)
    assert not histories(broken.folder)


@pytest.mark.parametrize("rank", [0, 1])
def test_where_a_ranks_own_is_gone_all_begin_a_stream(rank: int, tmp_path: Path) -> None:
    broken = broken_off(tmp_path / "broken", 2)
    histories(broken.folder)[rank].unlink()
    check_alike(on_ranks(train_on, 2, broken))
    assert read_ledger(broken.folder / LEDGER).streams == (3, 3)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_damaged_one_ends_the_run_on_all_ranks(rank: int, tmp_path: Path) -> None:
    broken = broken_off(tmp_path / "broken", 2)
    path = histories(broken.folder)[rank]
    path.write_bytes(path.read_bytes()[:-1] + b"\x00\x01"[rank : rank + 1])
    with pytest.raises(AssertionError, match="damaged|SaidElsewhere"):
        on_ranks(train_on, 2, broken)
    assert read_ledger(broken.folder / LEDGER).steps == 3
