import contextlib
import os
import shutil
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from dpft import machine
from dpft.models import source
from dpft.records.form import as_json
from dpft.records.plans import Check
from dpft.reports import doctor
from dpft.reports.doctor import (
    MISSING,
    OK,
    WARNING,
    can_train,
    doctor_parts,
    doctor_record,
)
from dpft.reports.terminal import Grid

FINE = Check(what="Python", state=OK, found="3.11.2", essential=True)
JAVA = Check(what="Java", state=MISSING, found="not in PATH", cost="no meteor", remedy="get it")
SLOW = Check(what="device", state=WARNING, found="CPU", cost="hours", remedy="a GPU")
BROKEN = Check(what="torch", state=MISSING, found="none", cost="all", remedy="pip", essential=True)


def test_only_something_essential_that_is_missing_keeps_dpft_from_training() -> None:
    assert can_train([FINE, JAVA, SLOW])
    assert not can_train([FINE, BROKEN])


def test_the_table_tells_state_cost_and_way_out_and_ends_with_the_verdict() -> None:
    table, _, last = doctor_parts([FINE, JAVA])
    assert isinstance(table, Grid)
    assert table.rows == [
        ("ok", "Python", "3.11.2"),
        ("missing", "Java", "not in PATH"),
        ("", "", "costs: no meteor"),
        ("", "", "mend:  get it"),
    ]
    assert last == "dpft can train here."
    assert doctor_parts([BROKEN])[-1] == "dpft cannot train here: torch."


def test_the_record_holds_every_check_and_the_verdict() -> None:
    record = as_json(doctor_record([FINE, BROKEN]))
    assert (record["schema_version"], record["can_train"]) == (1, False)
    assert [check["what"] for check in record["checks"]] == ["Python", "torch"]
    assert set(record["checks"][1]) == {"what", "state", "found", "cost", "remedy", "essential"}


def test_a_cpu_is_a_warning_and_a_gpu_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    check = doctor.device_check()
    assert check.state == WARNING and check.found.startswith("CPU, ") and check.cost
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3 * 2**30, 8 * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "H200")
    check = doctor.device_check()
    assert (check.state, check.found) == (OK, "H200, 3.0 of 8.0 GiB free")


def test_a_torch_that_does_not_compute_is_essential(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("secret path /home/ann")

    monkeypatch.setattr(torch, "ones", fails)
    check = doctor.device_check()
    assert (check.state, check.essential) == (MISSING, True)
    assert "ann" not in check.found


def test_little_disk_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def usage(_: Path) -> object:
        return shutil._ntuple_diskusage(10, 9, 1)

    assert {check.state for check in doctor.disk_checks()} <= {OK, WARNING}
    monkeypatch.setattr(shutil, "disk_usage", usage)
    checks = doctor.disk_checks()
    assert [check.what for check in checks] == ["disk, working folder", "disk, Hugging Face cache"]
    assert [check.found for check in checks] == ["0.0 GiB, below 4", "0.0 GiB, below 2"]
    assert {check.state for check in checks} == {WARNING}


def test_little_memory_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 2**18, "SC_PAGE_SIZE": 4096}.get)
    check = doctor.memory_check()
    assert (check.state, check.found) == (WARNING, "1.0 GiB, below 4")


def test_outputs_can_be_written_and_nothing_is_left(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        assert doctor.outputs_check().state == OK
        (tmp_path / "outputs").mkdir()
        assert doctor.outputs_check().state == OK
    assert list(tmp_path.rglob("*")) == [tmp_path / "outputs"]


def test_outputs_that_cannot_be_written_are_essential(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("a file")
    with contextlib.chdir(tmp_path):
        check = doctor.outputs_check()
    assert (check.state, check.essential) == (MISSING, True)
    assert check.found == "cannot be written: not a directory"


@pytest.mark.parametrize(("reachable", "state"), [(True, OK), (False, WARNING)])
def test_a_hub_that_does_not_answer_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, reachable: bool, state: str
) -> None:
    monkeypatch.setattr(machine, "hub_is_reachable", lambda: reachable)
    assert doctor.hub_check().state == state


def test_the_model_that_ships_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor.embedded_model_check().state == OK
    monkeypatch.setattr(source, "EMBEDDED_MODEL", tmp_path)
    check = doctor.embedded_model_check()
    assert (check.state, check.essential) == (MISSING, False)


KEYS = {"metrics.bertscore_model": None, "metrics.bleurt_model": None}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is installed and there is no Java."""
    monkeypatch.setattr(doctor, "installed_version", lambda _: None)
    monkeypatch.setattr(doctor, "extra_ranges", lambda _: {})
    monkeypatch.setenv("PATH", "")


def put_java(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "java").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "java").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.usefixtures("bare")
def test_a_bare_machine_lacks_every_need_and_each_says_which_metrics_it_costs() -> None:
    checks = {check.what: check for check in doctor.metric_checks(KEYS)}
    assert {check.state for check in checks.values()} == {MISSING}
    assert not any(check.essential for check in checks.values())
    assert {what: check.cost for what, check in checks.items()} == {
        "bert-score": "bertscore stands under not_computed",
        "nltk": "rouge_1, rouge_2 stand under not_computed",
        "pycocoevalcap": "meteor, cider stand under not_computed",
        "rouge-score": "rouge_1, rouge_2 stand under not_computed",
        "Java": "meteor stands under not_computed",
        "metrics.bertscore_model": "bertscore stands under not_computed",
        "metrics.bleurt_model": "bleurt stands under not_computed",
    }
    assert all(check.remedy for check in checks.values())


@pytest.mark.usefixtures("bare")
def test_every_model_of_the_table_has_a_configuration_key() -> None:
    assert {needs.model for needs in doctor.METRICS.values()} - {None} == set(KEYS)


@pytest.mark.usefixtures("bare")
def test_packages_are_held_to_the_extras_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    from packaging.specifiers import SpecifierSet

    monkeypatch.setattr(doctor, "installed_version", lambda _: "1.2")
    monkeypatch.setattr(doctor, "extra_ranges", lambda _: {"nltk": SpecifierSet(">=3.9")})
    states = {check.what: check.state for check in doctor.metric_checks({})}
    assert (states["nltk"], states["pycocoevalcap"]) == (WARNING, OK)


@pytest.mark.usefixtures("bare")
def test_java_tells_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = "echo Picked up JAVA_TOOL_OPTIONS: -X >&2; echo 'openjdk version \"17.0.15\"' >&2"
    put_java(tmp_path, answer, monkeypatch)
    check = doctor.java_check()
    assert (check.state, check.found) == (OK, 'openjdk version "17.0.15"')


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("script", "found"),
    [("exit 1", "java -version fails"), ("exec sleep 9", "no answer in 0.1 seconds")],
)
def test_a_java_that_fails_or_hangs_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, found: str
) -> None:
    put_java(tmp_path, script, monkeypatch)
    monkeypatch.setattr(doctor, "JAVA_SECONDS", 0.1 if "sleep" in script else 10)
    check = doctor.java_check()
    assert check.state == MISSING and found in check.found
    assert check.cost == "meteor stands under not_computed"


@pytest.mark.usefixtures("bare")
def test_a_model_folder_needs_a_configuration(tmp_path: Path) -> None:
    models = {"metrics.bleurt_model": str(tmp_path)}
    assert doctor.metric_checks(models)[-1].state == MISSING
    (tmp_path / "config.json").write_text("{}")
    check = doctor.metric_checks(models)[-1]
    assert (check.state, check.found) == (OK, str(tmp_path))


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


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "distribution", lambda _: Installed)
    monkeypatch.setattr(doctor, "version", version)


@pytest.mark.usefixtures("environment")
def test_what_is_absent_or_outside_its_range_is_missing_and_essential() -> None:
    checks = {check.what: check for check in doctor.package_checks()}
    assert list(checks) == ["Python", "torch", "peft", "gone"]
    assert all(check.essential for check in checks.values())
    assert (checks["torch"].state, checks["torch"].found) == (OK, "2.13.0+cpu")
    assert (checks["peft"].state, checks["gone"].state) == (MISSING, MISSING)
    assert checks["peft"].found == "1.0.1, dpft needs <1,>=0.18"
    assert checks["gone"].found == "not installed, dpft needs >=1"
    assert checks["gone"].remedy == "pip install 'gone>=1'"


@pytest.mark.usefixtures("environment")
def test_an_old_python_is_missing_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.package_checks()[0].state == OK
    monkeypatch.setattr(doctor.platform, "python_version", lambda: "3.10.4")
    check = doctor.package_checks()[0]
    assert (check.state, check.found) == (MISSING, "3.10.4, dpft needs >=3.11")


@pytest.mark.usefixtures("environment")
def test_without_metadata_the_ranges_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "distribution", absent)
    (check,) = doctor.package_checks()
    assert (check.what, check.state, check.essential) == ("dpft", WARNING, False)
    assert doctor.extra_ranges("metrics") == {}


@pytest.mark.usefixtures("environment")
def test_an_extra_names_its_own_packages_only() -> None:
    assert {name: str(r) for name, r in doctor.extra_ranges("metrics").items()} == {
        "rouge-score": ">=0.1.2"
    }


@pytest.mark.usefixtures("environment")
def test_a_tracker_that_is_absent_or_another_is_named_and_not_essential() -> None:
    tensorboard, wandb = doctor.tracker_checks()
    assert (tensorboard.state, tensorboard.cost) == (MISSING, "tracking=tensorboard is refused")
    assert tensorboard.remedy == "pip install 'dpft[tracking]'"
    assert (wandb.state, wandb.found) == (WARNING, "0.30, dpft[tracking] needs >=0.31")
    assert not tensorboard.essential and not wandb.essential
