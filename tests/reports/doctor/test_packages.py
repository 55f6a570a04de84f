from importlib.metadata import PackageNotFoundError

import pytest

from dpft.reports.doctor import packages
from dpft.reports.doctor.check import MISSING, OK, WARNING

REQUIRES = [
    "torch>=2.9",
    "peft<1,>=0.18",
    "gone>=1",
    'windows-only>=1; sys_platform == "win32"',
    'rouge-score>=0.1.2; extra == "metrics"',
    'pytest>=8; extra == "dev"',
    'tensorboard>=2.21; extra == "tracking"',
    'wandb>=0.31; extra == "tracking"',
]
VERSIONS = {"torch": "2.13.0+cpu", "peft": "1.0.1", "wandb": "0.30"}


class Installed:
    """What importlib.metadata gives of dpft."""

    metadata = {"Requires-Python": ">=3.11"}  # noqa: RUF012
    requires = REQUIRES


def version(name: str) -> str:
    if name not in VERSIONS:
        raise PackageNotFoundError(name)
    return VERSIONS[name]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "distribution", lambda _: Installed)
    monkeypatch.setattr(packages, "version", version)


def test_what_is_absent_or_outside_its_range_is_missing_and_essential() -> None:
    checks = {check.what: check for check in packages.package_checks()}
    assert list(checks) == ["Python", "torch", "peft", "gone"]
    assert all(check.essential for check in checks.values())
    assert (checks["torch"].state, checks["torch"].found) == (OK, "2.13.0+cpu")
    assert (checks["peft"].state, checks["gone"].state) == (MISSING, MISSING)
    assert checks["peft"].found == "1.0.1, dpft needs <1,>=0.18"
    assert checks["gone"].found == "not installed, dpft needs >=1"
    assert checks["gone"].remedy == "pip install 'gone>=1'"


def test_an_old_python_is_missing_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert packages.package_checks()[0].state == OK
    monkeypatch.setattr(packages.platform, "python_version", lambda: "3.10.4")
    check = packages.package_checks()[0]
    assert (check.state, check.found) == (MISSING, "3.10.4, dpft needs >=3.11")


def test_without_metadata_the_ranges_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(packages, "distribution", absent)
    (check,) = packages.package_checks()
    assert (check.what, check.state, check.essential) == ("dpft", WARNING, False)
    assert packages.extra_ranges("metrics") == {}


def test_an_extra_names_its_own_packages_only() -> None:
    assert {name: str(r) for name, r in packages.extra_ranges("metrics").items()} == {
        "rouge-score": ">=0.1.2"
    }


def test_a_tracker_that_is_absent_or_another_is_named_and_not_essential() -> None:
    tensorboard, wandb = packages.tracker_checks()
    assert (tensorboard.state, tensorboard.cost) == (MISSING, "tracking=tensorboard is refused")
    assert tensorboard.remedy == "pip install 'dpft[tracking]'"
    assert (wandb.state, wandb.found) == (WARNING, "0.30, dpft[tracking] needs >=0.31")
    assert not tensorboard.essential and not wandb.essential
