"""What ``train.compile=true`` needs of a machine beyond Python's packages; asked before it is used.

torch.compile writes C++ for a CPU, and kernels by Triton, with C around them, for an accelerator.
"""

import os
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path

COMPILERS = ("g++", "clang++", "c++", "cl")


def missing_for_compile(device_type: str) -> str | None:
    """Returns what torch.compile lacks on this machine for a kind of device, or None.

    Args:
        device_type: cpu, or the kind of an accelerator.
    """
    named = os.environ.get("CXX")
    if not any(shutil.which(name) for name in ((named,) if named else COMPILERS)):
        return f"the C++ compiler {named} (CXX)" if named else "a C++ compiler (g++ or clang++)"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "Python's headers (python3-dev)"
    if device_type != "cpu" and find_spec("triton") is None:
        return "the package triton"
    return None
