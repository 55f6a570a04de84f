"""What a machine, or the container around the process, has: memory."""

import ctypes
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dpft import machine
from dpft.machine import (
    USABLE,
    machine_memory,
    return_freed_memory,
    usable_memory,
)


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of a mebibyte, and control groups that limit nothing yet."""
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 256, "SC_PAGE_SIZE": 4096}.get)
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr(machine, "OF_VERSION_1", tmp_path / "v1")
    return tmp_path


def test_without_a_limit_it_is_the_machines(groups: Path) -> None:
    assert machine_memory() == 2**20
    (groups / "memory.max").write_text("max\n")
    assert machine_memory() == 2**20


@pytest.mark.parametrize("place", ["memory.max", "a/memory.max", "a/b/memory.max", "v1"])
def test_the_least_limit_around_the_process_counts(groups: Path, place: str) -> None:
    (groups / "a" / "b").mkdir(parents=True)
    (groups / "own").write_text("1:name=x:/else\n0::/a/b\n")
    (groups / place).write_text("1000\n")
    assert machine_memory() == 1000


def test_a_system_that_does_not_say_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: str) -> int:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "sysconf", unknown)
    assert machine_memory() is None


def test_training_may_use_a_share_of_all_that_a_device_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    properties = SimpleNamespace(total_memory=2000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(machine, "machine_memory", lambda: 1000)
    assert usable_memory(torch.device("cuda")) == USABLE * 2000
    assert usable_memory(torch.device("cpu")) == USABLE * 1000
    assert usable_memory(torch.device("mps")) is None


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc alone keeps holes")
def test_what_was_freed_goes_back_to_the_system() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    texts = [os.urandom(2000) for _ in range(40_000)]
    kept, before = texts[::100], resident()
    del texts  # The holes between what is kept are larger than pages.
    return_freed_memory()
    assert len(kept) == 400
    assert before - resident() > 40 * 2**20


def test_a_system_without_glibc_gives_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda _: SimpleNamespace())
    return_freed_memory()
