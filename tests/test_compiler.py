"""What torch.compile lacks on a machine."""

import shutil
import sysconfig
from pathlib import Path

import pytest

from dpft import machine
from dpft.machine import missing_for_compile


@pytest.fixture
def compiling_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that has a compiler, and headers of Python in the folder that is returned."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", {"g++": "/usr/bin/g++"}.get)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(machine, "find_spec", lambda _: None)
    (tmp_path / "Python.h").touch()
    return tmp_path


def test_a_cpu_needs_a_compiler_and_pythons_headers(
    compiling_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert missing_for_compile("cpu") is None
    (compiling_machine / "Python.h").unlink()
    assert missing_for_compile("cpu") == "Python's headers (python3-dev)"
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert missing_for_compile("cpu") == "a C++ compiler (g++ or clang++)"


def test_the_compiler_that_is_named_is_the_one(
    compiling_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "mine++")
    assert missing_for_compile("cpu") == "the C++ compiler mine++ (CXX)"


def test_an_accelerator_needs_triton_too(
    compiling_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert missing_for_compile("cuda") == "the package triton"
    monkeypatch.setattr(machine, "find_spec", lambda _: object())
    assert missing_for_compile("cuda") is None
