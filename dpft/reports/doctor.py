"""``dpft doctor``: checks of Python, packages, machine and metrics: lacks, their cost, the way out.

What is essential is what every ``dpft train`` needs: Python and the required packages in their
ranges, a torch that computes, and an outputs/ that can be written. Without one of them the doctor
exits with 1. All else costs something that is named, and training goes on without it: a metric that
lacks something stands under ``not_computed`` in metrics.json. Ranges are read from the metadata of
the installed dpft, and packages are not imported, so that a broken installation is described rather
than met. Nothing is left behind, and no path is told but those relative to the working folder.
"""

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from dpft.machine import machine_memory
from dpft.records.plans import Check, Doctor
from dpft.reports.terminal import Grid

OK: Final = "ok"
WARNING: Final = "warning"
MISSING: Final = "missing"


def examine(metrics: object) -> list[Check]:
    """Returns all checks, what is essential first.

    Args:
        metrics: A dataclass of the folders of metrics' models, ``metrics.KEY``.
    """
    models = {f"metrics.{name}": folder for name, folder in vars(metrics).items()}
    return [
        *package_checks(),
        device_check(),
        outputs_check(),
        memory_check(),
        *disk_checks(),
        embedded_model_check(),
        hub_check(),
        *metric_checks(models),
        *tracker_checks(),
    ]


def can_train(checks: Sequence[Check]) -> bool:
    """Returns whether nothing essential is missing."""
    return not any(check.essential and check.state == MISSING for check in checks)


def doctor_record(checks: Sequence[Check]) -> Doctor:
    """Returns what ``dpft doctor output=json`` prints."""
    return Doctor(can_train=can_train(checks), checks=tuple(checks))


def doctor_parts(checks: Sequence[Check]) -> list[Grid | str]:
    """Returns the checks as a table, the cost and the way out below what is missing."""
    rows = [row for check in checks for row in _rows(check)]
    bad = [check.what for check in checks if check.essential and check.state == MISSING]
    last = f"dpft cannot train here: {', '.join(bad)}." if bad else "dpft can train here."
    return [Grid(rows=rows), "", last]


def _rows(check: Check) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = [(check.state, check.what, check.found)]
    if check.cost is not None:
        rows.append(("", "", f"costs: {check.cost}"))
    if check.remedy is not None:
        rows.append(("", "", f"mend:  {check.remedy}"))
    return rows


GIB = 2**30
OUTPUTS = Path("outputs")
MEMORY_GIB = 4
"""What ``dpft plan`` foretells of a whole GPT-2 of 124 M in micro-batches of 8 times 64 tokens."""
DISK_GIB = 4
"""A run of it keeps model/ (0.5 GB) and a checkpoint (1.5 GB), two of them while one is written."""
CACHE_GIB = 2
"""GPT-2's weights are 0.5 GB, the medium one's 1.5 GB."""


def device_check() -> Check:
    """Returns what torch computes on, after it has computed something."""
    try:
        import torch

        from dpft.devices import accelerator, device_name, free_and_total_memory

        torch.ones(2).sum().item()
    except (ImportError, OSError, RuntimeError) as error:
        return Check(
            what="device",
            state=MISSING,
            found=f"torch does not compute ({type(error).__name__})",
            cost="dpft does not run",
            remedy="install torch anew, see pytorch.org",
            essential=True,
        )
    device = accelerator()
    if device is not None:
        room = free_and_total_memory()
        found = device_name(device)
        if room is not None:
            found += f", {room[0] / GIB:.1f} of {room[1] / GIB:.1f} GiB free"
        return Check(what="device", state=OK, found=found)
    built = torch.version.cuda is not None or torch.version.hip is not None
    return Check(
        what="device",
        state=WARNING,
        found=f"CPU, {torch.get_num_threads()} of {os.cpu_count()} cores used",
        cost="training a model of 100 million parameters takes hours to days",
        remedy="use a machine with a GPU"
        if built
        else "where there is a GPU, install a torch that is built for it, see pytorch.org",
    )


def memory_check() -> Check:
    """Returns how much memory there is, a container's limit respected."""
    return _room(
        "memory",
        machine_memory() or 0,
        MEMORY_GIB,
        cost="larger models than the tiny one may not fit",
        remedy="lower train.micro_batch_size, or choose a smaller model or method=lora",
    )


def disk_checks() -> list[Check]:
    """Returns how much disk is free where runs and downloads go."""
    checks = [
        _room(
            "disk, working folder",
            _free(Path.cwd()),
            DISK_GIB,
            cost="a run of a larger model than the tiny one may end for want of disk",
            remedy="free disk, or write elsewhere with hydra.run.dir=DIR",
        )
    ]
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:  # the packages' own check says so
        return checks
    cache = _room(
        "disk, Hugging Face cache",
        _free(Path(HF_HUB_CACHE)),
        CACHE_GIB,
        cost="downloads of models and data may fail",
        remedy="free disk, or move the cache with HF_HOME=DIR",
    )
    return [*checks, cache]


def outputs_check() -> Check:
    """Returns whether a run can be written below the working folder."""
    place = _nearest(OUTPUTS)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
    except OSError as error:
        reason = (error.strerror or "cannot be written").lower()
        return Check(
            what="outputs/",
            state=MISSING,
            found=f"cannot be written: {reason}",
            cost="dpft has nowhere to write a run",
            remedy="work in a folder of your own, or write elsewhere with hydra.run.dir=DIR",
            essential=True,
        )
    return Check(what="outputs/", state=OK, found="can be written")


def hub_check() -> Check:
    """Returns whether the Hugging Face hub answers; it is given 5 seconds."""
    try:
        from dpft.machine import hub_is_reachable

        reachable = hub_is_reachable()
    except ImportError:
        reachable = False
    if reachable:
        return Check(what="Hugging Face hub", state=OK, found="answers")
    return Check(
        what="Hugging Face hub",
        state=WARNING,
        found="does not answer",
        cost="models and data must be local, or in the cache from before",
        remedy="connect (unset HF_HUB_OFFLINE), or give model.path=DIR and task.data_dir=DIR",
    )


def embedded_model_check() -> Check:
    """Returns whether the model that ships with dpft is there."""
    from dpft.errors import InputError

    what = "model=tiny"
    try:
        from dpft.models.source import ModelConfig, check_folder, check_weight_files

        config = ModelConfig(name="tiny", embedded=True)
        assert config.folder is not None
        check_folder(config, config.folder)
        check_weight_files(config, config.folder)
    except (ImportError, OSError, InputError):
        return Check(
            what=what,
            state=MISSING,
            found="its files are not all there",
            cost="model=tiny and make demo do not run",
            remedy="pip install --force-reinstall dpft, or restore the checkout",
        )
    return Check(what=what, state=OK, found="ships with dpft")


def _free(folder: Path) -> int:
    """Returns the bytes free where the folder is or would be made."""
    return shutil.disk_usage(_nearest(folder.absolute())).free


def _nearest(path: Path) -> Path:
    """Returns the path, or the nearest above it that exists."""
    return next(one for one in (path, *path.parents) if one.exists())


def _room(what: str, number: int, least_gib: int, *, cost: str, remedy: str) -> Check:
    found = f"{number / GIB:.1f} GiB"
    if number >= least_gib * GIB:
        return Check(what=what, state=OK, found=found)
    return Check(
        what=what, state=WARNING, found=f"{found}, below {least_gib}", cost=cost, remedy=remedy
    )


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
    try:
        lines = distribution(DISTRIBUTION).requires or ()
    except PackageNotFoundError:
        return {}
    return {
        one.name: one.specifier
        for one in map(Requirement, lines)
        if one.marker is not None
        and not one.marker.evaluate()
        and one.marker.evaluate({"extra": extra})
    }


def extra_check(name: str, extra: str, *, cost: str, other: str) -> Check:
    """Returns whether a package of an extra is there, at a version it was made for."""
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


EXTRA = "metrics"
JAVA = "java"
JAVA_SECONDS = 10
_JAVA_REMEDY = "install a Java runtime, such as Debian's default-jre-headless, and put java in PATH"


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What one metric needs."""

    packages: tuple[str, ...] = ()
    """Distributions, as pip calls them."""
    java: bool = False
    model: str | None = None
    """Configuration key of a folder with a model."""


METRICS: Mapping[str, Needs] = {
    "meteor": Needs(packages=("pycocoevalcap",), java=True),
    "cider": Needs(packages=("pycocoevalcap",)),
    "rouge_1": Needs(packages=("rouge-score", "nltk")),
    "rouge_2": Needs(packages=("rouge-score", "nltk")),
    "bertscore": Needs(packages=("bert-score",), model="metrics.bertscore_model"),
    "bleurt": Needs(model="metrics.bleurt_model"),
}
"""Metrics, by their names in metrics.json, that need more than a required package."""


def metric_checks(models: Mapping[str, str | None]) -> list[Check]:
    """Returns the checks of what metrics need."""
    packages = sorted({name for needs in METRICS.values() for name in needs.packages})
    costs = {
        name: _cost([metric for metric, needs in METRICS.items() if name in needs.packages])
        for name in packages
    }
    return [
        *(
            extra_check(name, EXTRA, cost=cost, other=f"{cost}, or other numbers")
            for name, cost in costs.items()
        ),
        java_check(),
        *(_model(key, folder) for key, folder in models.items()),
    ]


def java_check() -> Check:
    """Returns whether ``java -version`` answers, within ten seconds."""
    cost = _cost([name for name, needs in METRICS.items() if needs.java])
    path = shutil.which(JAVA)
    if path is None:
        return Check(
            what="Java", state=MISSING, found="not in PATH", cost=cost, remedy=_JAVA_REMEDY
        )
    try:
        done = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS, check=True
        )
    except subprocess.TimeoutExpired:
        found = f"java -version gave no answer in {JAVA_SECONDS} seconds"
    except (OSError, subprocess.CalledProcessError, UnicodeDecodeError):
        found = "java -version fails"
    else:
        lines = [line for line in done.stderr.splitlines() if "version" in line]
        return Check(what="Java", state=OK, found=lines[0] if lines else "answers")
    return Check(what="Java", state=MISSING, found=found, cost=cost, remedy=_JAVA_REMEDY)


def _model(key: str, folder: str | None) -> Check:
    cost = _cost([metric for metric, needs in METRICS.items() if needs.model == key])
    remedy = f"give {key}=FOLDER, a model written by save_pretrained"
    if folder is None:
        return Check(what=key, state=MISSING, found="not given", cost=cost, remedy=remedy)
    if not (Path(folder).expanduser() / "config.json").is_file():
        found = f"{folder} holds no config.json"
        return Check(what=key, state=MISSING, found=found, cost=cost, remedy=remedy)
    return Check(what=key, state=OK, found=folder)


def _cost(metrics: Sequence[str]) -> str:
    stands = "stands" if len(metrics) == 1 else "stand"
    return f"{', '.join(metrics)} {stands} under not_computed"
