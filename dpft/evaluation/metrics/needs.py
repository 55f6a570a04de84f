"""What a metric cannot be computed without, as a reason in words, or None where it is there.

A reason says what is missing and how to get it; it ends up beside the metric in metrics.json.
"""

import importlib
import shutil
from pathlib import Path


def missing_modules(*names: str) -> str | None:
    """Returns why modules of the ``metrics`` extra cannot be used; None where they can.

    Args:
        names: Modules, imported here: one that is installed but broken counts as missing.
    """
    try:
        for name in names:
            importlib.import_module(name)
    except ImportError:
        return "needs the extra: pip install 'dpft[metrics]'"
    return None


def missing_java() -> str | None:
    """Returns why no Java program can be run; None where one can."""
    if shutil.which("java") is None:
        return "needs Java; install a Java runtime (8 or newer)"
    return None


def missing_folder(key: str, folder: str | None, example: str) -> str | None:
    """Returns why there is no model folder; None where there is.

    Args:
        key: The configuration key that names it.
        folder: Its value.
        example: A model that would do.
    """
    if folder is None:
        return f"needs a model folder; set {key}=DIR (a download of {example}, say)"
    if not Path(folder).is_dir():
        return f"needs a model folder; {key}={folder} is none"
    return None
