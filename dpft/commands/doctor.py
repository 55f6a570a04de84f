"""``dpft doctor``: check whether dpft can train on this machine and which extras are missing.

Training needs Python and the required packages in their version ranges, a working PyTorch, and a
writable working folder. The version ranges come from the metadata of the installed dpft. Packages
other than torch are not imported, so a broken installation is reported instead of raising an error.
"""

import os
import platform
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Final, Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from dpft.config.output_keys import Output
from dpft.config.section import Section
from dpft.errors import RunError
from dpft.machine import machine_memory
from dpft.reports.terminal import Answer, Grid, show_answer
from dpft.strict_model import StrictModel, Versioned


class DoctorConfig(Section):
    """Configuration of ``dpft doctor``, conf/doctor.yaml."""

    output: Output = "table"
    """Output format: table for people, or json for one object on stdout."""


class Check(StrictModel):
    """Result of one check."""

    what: str
    """Name of the checked package, device or resource."""
    state: Literal["ok", "missing"]
    """Whether the check succeeded."""
    found: str
    """Details as text: a version, a number of GiB, or the package to install."""
    essential: bool = False
    """Whether dpft cannot train if the check fails."""


class Doctor(Versioned):
    """Results of all checks of this machine."""

    can_train: bool
    """Whether all essential checks succeeded."""
    checks: tuple[Check, ...]
    """All checks; essential checks come first."""


OK: Final = "ok"
MISSING: Final = "missing"
GIB = 2**30
EXTRAS = ("metrics", "tracking", "vision", "audit", "quantization", "synthesis", "slurm")


def examine() -> Doctor:
    """Return all checks; essential checks come first."""
    checks = (
        *package_checks(),
        device_check(),
        folder_check(),
        Check(what="memory", state=OK, found=f"{(machine_memory() or 0) / GIB:.1f} GiB"),
        Check(what="disk", state=OK, found=f"{shutil.disk_usage('.').free / GIB:.1f} GiB free"),
        *map(extra_check, EXTRAS),
        java_check(),
    )
    lacks = any(check.essential and check.state == MISSING for check in checks)
    return Doctor(can_train=not lacks, checks=checks)


def doctor_parts(doctor: Doctor) -> list[Grid | str]:
    """Return the checks as a table, and a line that states whether dpft can train."""
    rows = [(check.state, check.what, check.found) for check in doctor.checks]
    lacks = [check.what for check in doctor.checks if check.essential and check.state == MISSING]
    last = f"dpft cannot train here: {', '.join(lacks)}." if lacks else "dpft can train here."
    return [Grid(rows=rows), "", last]


def package_checks() -> list[Check]:
    """Return a check of Python and of each required package."""
    try:
        python = SpecifierSet(distribution("dpft").metadata["Requires-Python"] or "")
    except PackageNotFoundError:
        return [Check(what="dpft", state=MISSING, found="not installed as a package")]
    return [
        _check("Python", platform.python_version(), python),
        *(_check(one.name, _version(one.name), one.specifier) for one in _requirements("")),
    ]


def device_check() -> Check:
    """Return a check of the device that torch computes on, after a test computation."""
    try:
        import torch

        from dpft.devices import accelerator, device_name, free_and_total_memory

        torch.ones(2).sum().item()
    except (ImportError, OSError, RuntimeError) as error:
        reason = f"torch fails ({type(error).__name__}); reinstall it as pytorch.org describes"
        return Check(what="device", state=MISSING, found=reason, essential=True)
    device, memory = accelerator(), free_and_total_memory()
    description = f"CPU, {torch.get_num_threads()} of {os.cpu_count()} cores used"
    if device is not None:
        description = device_name(device)
        if memory is not None:
            description += f", {memory[0] / GIB:.1f} of {memory[1] / GIB:.1f} GiB free"
    return Check(what="device", state=OK, found=description, essential=True)


def folder_check() -> Check:
    """Return a check that a run can be written below the working folder."""
    place = "outputs" if Path("outputs").exists() else "."
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        reason = f"cannot be written to: {(error.strerror or 'unknown reason').lower()}"
        return Check(what="outputs/", state=MISSING, found=reason, essential=True)
    return Check(what="outputs/", state=OK, found="can be written to", essential=True)


def extra_check(extra: str) -> Check:
    """Return a check that the packages of an extra are installed in their version ranges."""
    checks = [_check(one.name, _version(one.name), one.specifier) for one in _requirements(extra)]
    lacks = [f"{check.what} {check.found}" for check in checks if check.state == MISSING]
    what = f"dpft[{extra}]"
    if lacks:
        advice = f"{'; '.join(lacks)}. Run: pip install '{what}'"
        return Check(what=what, state=MISSING, found=advice)
    return Check(what=what, state=OK, found="installed")


def java_check() -> Check:
    """Return a check for a Java runtime, which the metric METEOR needs."""
    if shutil.which("java") is None:
        return Check(what="Java", state=MISSING, found="not on the PATH; METEOR needs it")
    return Check(what="Java", state=OK, found="on the PATH")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _requirements(extra: str) -> list[Requirement]:
    """Return the packages that an extra adds, or the required packages if ``extra`` is empty."""
    try:
        every = [Requirement(line) for line in distribution("dpft").requires or ()]
    except PackageNotFoundError:
        return []

    def needed(one: Requirement, extra: str) -> bool:
        return one.marker is None or one.marker.evaluate({"extra": extra})

    return [one for one in every if needed(one, extra) and not (extra and needed(one, ""))]


def _check(what: str, installed: str | None, wanted: SpecifierSet) -> Check:
    if installed is not None and wanted.contains(installed, prereleases=True):
        return Check(what=what, state=OK, found=installed, essential=True)
    needs = f", dpft needs {wanted}" if str(wanted) else ""
    version_text = f"{installed or 'not installed'}{needs}"
    return Check(what=what, state=MISSING, found=version_text, essential=True)


def check_machine(config: DoctorConfig) -> None:
    """Print all checks of this machine.

    Raises:
        RunError: An essential check failed.
    """
    doctor = examine()
    show_answer(Answer(table=doctor_parts(doctor), record=doctor), config.output)
    if not doctor.can_train:
        raise RunError(
            "dpft cannot train here. Install everything that is listed as missing above."
        )
