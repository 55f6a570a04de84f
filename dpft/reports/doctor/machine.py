"""The machine: what computes, memory, disk, the folder of runs, the hub and the model that ships.

Nothing is left behind, and no path is told but those relative to the working folder.
"""

import os
import shutil
import tempfile
from pathlib import Path

from dpft.compiler import missing_for_compile
from dpft.memory import machine_memory
from dpft.records.machine import Check
from dpft.reports.doctor.check import MISSING, OK, WARNING

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


def compiler_check() -> Check:
    """Returns whether train.compile=true can be had."""
    try:
        from dpft.devices import best_device

        kind = best_device().type
    except (ImportError, OSError):
        kind = "cpu"
    missing = missing_for_compile(kind)
    if missing is None:
        return Check(what="train.compile", state=OK, found="can be used")
    return Check(
        what="train.compile",
        state=WARNING,
        found=f"lacks {missing}",
        cost="train.compile=true is refused",
        remedy=f"install {missing}",
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
        from dpft.hub import hub_is_reachable
    except ImportError:
        reachable = False
    else:
        reachable = hub_is_reachable()
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
