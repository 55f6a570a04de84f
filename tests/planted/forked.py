"""Run pytest in forks of one process that has already imported the libraries.

Each planted fault needs its own process, which would spend most of its time importing torch,
transformers and other libraries. dpft and its tests are imported after the fork, from the folder
that contains the fault.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

LIBRARIES = (
    *("torch", "torch._dynamo", "transformers.models.gpt2.modeling_gpt2", "peft", "hydra"),
    *("scipy.stats", "matplotlib.pyplot", "dp_accounting", "hypothesis", "rich.console", "pytest"),
)
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class Forks:
    """Start pytest in forks of one process that has already imported the libraries."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*LIBRARIES])

    def run(
        self, folder: Path, tests: Sequence[str], environment: Mapping[str, str], *, seconds: float
    ) -> tuple[int, str]:
        """Run tests of a folder; return pytest's exit code and output.

        Raises:
            TimeoutError: They took longer than ``seconds``; they and their processes are killed.
        """
        os.environ.update(OFFLINE, OMP_NUM_THREADS="1")  # before the libraries are imported
        with tempfile.NamedTemporaryFile("r") as output:
            process = self._context.Process(
                target=_pytest, args=(str(folder), [*tests], {**environment}, output.name)
            )
            process.start()
            process.join(seconds)
            if process.exitcode is None:
                assert process.pid is not None  # it was started
                os.killpg(process.pid, signal.SIGKILL)
                process.join()
                raise TimeoutError(f"The tests took longer than {seconds:.0f} s.")
            return process.exitcode, output.read()


def _pytest(folder: str, tests: list[str], environment: dict[str, str], output: str) -> None:
    """Run pytest in this new process as ``python -m pytest`` in a folder would."""
    os.setpgrp()
    descriptor = os.open(output, os.O_WRONLY)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(folder)
    os.environ.update(environment, PYTHONPATH=folder)
    for name in [name for name in sys.modules if name.split(".")[0] in ("dpft", "tests")]:
        del sys.modules[name]
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = False
    import pytest

    sys.exit(pytest.main(["-q", "--tb=short", *tests]))
