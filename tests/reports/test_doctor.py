import contextlib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from dpft.commands import doctor
from dpft.commands.doctor import MISSING, OK

REQUIRES = [
    "torch>=2.9",
    "peft<1,>=0.18",
    "gone>=1",
    'windows-only>=1; sys_platform == "win32"',
    'rouge-score>=0.1.2; extra == "metrics"',
    'tensorboard>=2.21; extra == "tracking"',
    'wandb>=0.31; extra == "tracking"',
]
VERSIONS = {"torch": "2.13.0+cpu", "peft": "1.0.1", "wandb": "0.32", "rouge-score": "0.1.2"}


class Installed:
    """What importlib.metadata gives of dpft."""

    metadata = {"Requires-Python": ">=3.11"}  # noqa: RUF012
    requires = REQUIRES


def version(name: str) -> str:
    if name not in VERSIONS:
        raise PackageNotFoundError(name)
    return VERSIONS[name]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "distribution", lambda _: Installed)
    monkeypatch.setattr(doctor, "version", version)


@pytest.mark.usefixtures("environment")
def test_a_required_package_that_is_absent_or_outside_its_range_is_essential() -> None:
    checks = {check.what: check for check in doctor.package_checks()}
    assert list(checks) == ["Python", "torch", "peft", "gone"]
    assert all(check.essential for check in checks.values())
    assert (checks["torch"].state, checks["torch"].found) == (OK, "2.13.0+cpu")
    assert (checks["peft"].state, checks["peft"].found) == (MISSING, "1.0.1, dpft needs <1,>=0.18")
    assert (checks["gone"].state, checks["gone"].found) == (
        MISSING,
        "not installed, dpft needs >=1",
    )
    record = doctor.examine()
    assert not record.can_train
    assert doctor.doctor_parts(record)[-1] == "dpft cannot train here: peft, gone."


@pytest.mark.usefixtures("environment")
def test_an_old_python_is_essential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.platform, "python_version", lambda: "3.10.4")
    check = doctor.package_checks()[0]
    assert (check.state, check.found) == (MISSING, "3.10.4, dpft needs >=3.11")


@pytest.mark.usefixtures("environment")
def test_a_missing_optional_package_is_named_with_its_extra_and_is_not_essential() -> None:
    assert doctor.extra_check("metrics").state == OK
    check = doctor.extra_check("tracking")
    assert (check.state, check.essential) == (MISSING, False)
    assert check.found == (
        "tensorboard not installed, dpft needs >=2.21. Run: pip install 'dpft[tracking]'"
    )


def test_the_device_is_named_with_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert doctor.device_check().found.startswith("CPU, ")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3 * 2**30, 8 * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "H200")
    assert doctor.device_check().found == "H200, 3.0 of 8.0 GiB free"


def test_a_torch_that_does_not_compute_is_essential(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("secret path /home/ann")

    monkeypatch.setattr(torch, "ones", fails)
    check = doctor.device_check()
    assert (check.state, check.essential) == (MISSING, True)
    assert "ann" not in check.found


def test_a_folder_that_cannot_be_written_to_is_essential(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        assert doctor.folder_check().state == OK
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "outputs").write_text("a file")
        check = doctor.folder_check()
    assert (check.state, check.essential) == (MISSING, True)
    assert check.found == "cannot be written to: not a directory"
