"""What processes find of each other in the environment, and what is refused before they meet."""

import pytest

from dpft.parallel.parallel_config import ParallelConfig, World, check_start, world
from tests.rejections import rejects

NONE, DDP = ParallelConfig(), ParallelConfig(name="ddp")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCH_DISTRIBUTED_DEBUG"):
        monkeypatch.delenv(name, raising=False)


def two(monkeypatch: pytest.MonkeyPatch, **others: str) -> None:
    """Say that this is the second of two processes."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", **others}.items():
        monkeypatch.setenv(name, value)


def test_processes_started_by_hand_are_taken_for_those_of_one_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert world() is None
    two(monkeypatch)
    assert world() == World(rank=1, size=2, local_rank=1, local_size=2)
    assert check_start(DDP) == world()


def test_processes_without_a_group_are_told_how_to_start() -> None:
    with rejects("parallel", "ddp"):
        check_start(DDP)
    assert check_start(NONE) is None


def test_several_processes_never_train_each_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    two(monkeypatch)
    with rejects("parallel", "none"):
        check_start(NONE)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert check_start(NONE) is None


def test_a_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    with rejects("WORLD_SIZE"):
        check_start(DDP)


@pytest.mark.parametrize(
    ("name", "value"),
    [("TORCH_DISTRIBUTED_DEBUG", "DETAIL"), ("TORCH_DISTRIBUTED_DEBUG", "info"),
     ("TORCH_CPP_LOG_LEVEL", "INFO"), ("TORCH_CPP_LOG_LEVEL", "0")],
)  # fmt: skip
def test_logs_that_show_drawn_sizes_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    two(monkeypatch, **{name: value})
    with rejects(name, value):
        check_start(DDP)
    monkeypatch.setenv(name, "OFF" if name.endswith("DEBUG") else "ERROR")
    assert check_start(DDP) is not None


def test_a_run_of_another_number_of_processes_than_was_said_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with rejects("parallel.world_size", 4):
        check_start(ParallelConfig(name="ddp", world_size=4))
    assert check_start(ParallelConfig(name="ddp", world_size=2)) is not None


@pytest.mark.parametrize(("name", "world_size"), [("ddp", 0), ("fsdp", -1), ("none", 2)])
def test_world_sizes_that_cannot_be_are_refused(name: str, world_size: int) -> None:
    with pytest.raises(ValueError, match="world_size"):
        ParallelConfig(name=name, world_size=world_size)


def test_a_plan_is_of_as_many_processes_as_was_said() -> None:
    assert ParallelConfig().planned_processes == 1
    assert ParallelConfig(name="fsdp").planned_processes == 2
    assert ParallelConfig(name="fsdp", world_size=64).planned_processes == 64
