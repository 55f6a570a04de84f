"""Python and the packages dpft requires, against the ranges that pyproject.toml states.

The ranges are read where pip put them, the metadata of the installed dpft; nothing is imported, so
a broken installation is described rather than met.
"""

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, version

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from dpft.records.machine import Check
from dpft.reports.doctor.check import MISSING, OK, WARNING

DISTRIBUTION = "dpft"
_REINSTALL = "pip install --upgrade dpft, or make setup in a checkout"


def package_checks() -> list[Check]:
    """Returns a check of Python and of each required package."""
    try:
        installed = distribution(DISTRIBUTION)
    except PackageNotFoundError:
        return [
            Check(
                what="dpft",
                state=WARNING,
                found="not installed as a package",
                cost="the versions of the packages it needs are not checked",
                remedy=_REINSTALL,
            )
        ]
    python = installed.metadata["Requires-Python"] or ""
    required = [Requirement(line) for line in installed.requires or ()]
    return [
        _check("Python", platform.python_version(), SpecifierSet(python), "install such a Python"),
        *(_package(one) for one in required if one.marker is None or one.marker.evaluate()),
    ]


def installed_version(name: str) -> str | None:
    """Returns the version of an installed distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def extra_ranges(extra: str) -> dict[str, SpecifierSet]:
    """Returns the packages of an extra with their ranges; none where dpft is not installed."""
    return {one.name: one.specifier for one in _extra_requirements(extra)}


def extra_check(name: str, extra: str, *, cost: str, other: str) -> Check:
    """Returns whether a package of an extra is there, at a version it was made for.

    Args:
        name: Of the package, as pip calls it.
        extra: Of dpft.
        cost: What its lack costs.
        other: What another version costs.
    """
    found, wanted = installed_version(name), extra_ranges(extra).get(name)
    remedy = f"pip install 'dpft[{extra}]'"
    if found is None:
        return Check(what=name, state=MISSING, found="not installed", cost=cost, remedy=remedy)
    if wanted is not None and not wanted.contains(found, prereleases=True):
        needs = f"{found}, dpft[{extra}] needs {wanted}"
        return Check(what=name, state=WARNING, found=needs, cost=other, remedy=remedy)
    return Check(what=name, state=OK, found=found)


def tracker_checks() -> list[Check]:
    """Returns whether the packages of the trackers are there."""
    return [
        extra_check(
            name,
            "tracking",
            cost=f"tracking={name} is refused",
            other=f"tracking={name} may fail, or tell what it was not seen to tell",
        )
        for name in ("tensorboard", "wandb")
    ]


def _extra_requirements(extra: str) -> Iterator[Requirement]:
    try:
        lines = distribution(DISTRIBUTION).requires or ()
    except PackageNotFoundError:
        return
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        if marker is not None and not marker.evaluate() and marker.evaluate({"extra": extra}):
            yield requirement


def _package(requirement: Requirement) -> Check:
    found = installed_version(requirement.name)
    remedy = f"pip install '{requirement.name}{requirement.specifier}'"
    return _check(requirement.name, found, requirement.specifier, remedy)


def _check(what: str, found: str | None, wanted: SpecifierSet, remedy: str) -> Check:
    """Returns an essential check of a version; no version is None."""
    fits = found is not None and wanted.contains(found, prereleases=True)
    needs = f", dpft needs {wanted}" if str(wanted) else ""
    return Check(
        what=what,
        state=OK if fits else MISSING,
        found=f"{found or 'not installed'}{'' if fits else needs}",
        cost=None if fits else "dpft does not run, or not as tested",
        remedy=None if fits else remedy,
        essential=True,
    )
