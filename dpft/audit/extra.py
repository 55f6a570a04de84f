"""Libraries of the ``audit`` extra, imported where an audit needs them."""

import importlib
from types import ModuleType

from dpft.errors import InputError


def needed(module: str) -> ModuleType:
    """Returns a module of the ``audit`` extra.

    Raises:
        InputError: It is not installed, or is broken; says how to get it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise InputError(
            f"this audit needs {package}, of the extra: pip install 'dpft[audit]'."
        ) from error
