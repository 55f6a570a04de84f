import contextlib
import os
import shutil
from pathlib import Path

import pytest
import torch

from dpft import hub
from dpft.models import source
from dpft.reports.doctor import machine
from dpft.reports.doctor.check import MISSING, OK, WARNING


def test_a_cpu_is_a_warning_and_a_gpu_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    check = machine.device_check()
    assert check.state == WARNING and check.found.startswith("CPU, ") and check.cost
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3 * 2**30, 8 * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "H200")
    check = machine.device_check()
    assert (check.state, check.found) == (OK, "H200, 3.0 of 8.0 GiB free")


def test_a_torch_that_does_not_compute_is_essential(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("secret path /home/ann")

    monkeypatch.setattr(torch, "ones", fails)
    check = machine.device_check()
    assert (check.state, check.essential) == (MISSING, True)
    assert "ann" not in check.found


def test_little_disk_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def usage(_: Path) -> object:
        return shutil._ntuple_diskusage(10, 9, 1)

    assert {check.state for check in machine.disk_checks()} <= {OK, WARNING}
    monkeypatch.setattr(shutil, "disk_usage", usage)
    checks = machine.disk_checks()
    assert [check.what for check in checks] == ["disk, working folder", "disk, Hugging Face cache"]
    assert [check.found for check in checks] == ["0.0 GiB, below 4", "0.0 GiB, below 2"]
    assert {check.state for check in checks} == {WARNING}


def test_little_memory_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 2**18, "SC_PAGE_SIZE": 4096}.get)
    check = machine.memory_check()
    assert (check.state, check.found) == (WARNING, "1.0 GiB, below 4")


def test_outputs_can_be_written_and_nothing_is_left(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        assert machine.outputs_check().state == OK
        (tmp_path / "outputs").mkdir()
        assert machine.outputs_check().state == OK
    assert list(tmp_path.rglob("*")) == [tmp_path / "outputs"]


def test_outputs_that_cannot_be_written_are_essential(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("a file")
    with contextlib.chdir(tmp_path):
        check = machine.outputs_check()
    assert (check.state, check.essential) == (MISSING, True)
    assert check.found == "cannot be written: not a directory"


@pytest.mark.parametrize(("reachable", "state"), [(True, OK), (False, WARNING)])
def test_a_hub_that_does_not_answer_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, reachable: bool, state: str
) -> None:
    monkeypatch.setattr(hub, "hub_is_reachable", lambda: reachable)
    assert machine.hub_check().state == state


def test_the_model_that_ships_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine.embedded_model_check().state == OK
    monkeypatch.setattr(source, "EMBEDDED_MODEL", tmp_path)
    check = machine.embedded_model_check()
    assert (check.state, check.essential) == (MISSING, False)


def test_what_compiling_lacks_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "missing_for_compile", lambda _: None)
    assert machine.compiler_check().state == OK
    monkeypatch.setattr(machine, "missing_for_compile", lambda _: "a C++ compiler")
    check = machine.compiler_check()
    assert (check.state, check.found) == (WARNING, "lacks a C++ compiler")
    assert not check.essential and check.remedy == "install a C++ compiler"
