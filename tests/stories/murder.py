"""Processes of ``dpft`` that are killed with SIGKILL, and what their folders show of the moment.

Each is forked from a server that has imported all that a run imports (tests/stories/warm.py):
thirty imports would take longer than thirty runs.
"""

import importlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from dpft.cli.main import main
from dpft.privacy.journal import read_journal
from dpft.privacy.ledger import line_text, read_ledger

SECONDS = 180
"""After which a run that does nothing is taken for hung."""


def _kill(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _half_a_line(ledger: Any, entry: Any) -> None:
    ledger._file.write(line_text(entry)[:40])
    ledger._file.flush()
    _kill()


def _half_of_them(_: Any, path: Path) -> None:
    path.write_bytes(b"half")
    _kill()


def _wait(*_: Any, **__: Any) -> None:
    Path("waiting").touch()
    time.sleep(SECONDS)


AIMS: dict[str, tuple[str, str, Callable[..., None]]] = {
    "inside a step": ("dpft.training.training_run", "per_example_losses", _kill),
    "between journal and ledger": ("dpft.privacy.ledger", "Ledger.append", _kill),
    "inside the ledger's write": ("dpft.privacy.ledger", "Ledger._write", _half_a_line),
    "between ledger and update": ("dpft.methods.full", "Full.finish_gradient", _kill),
    "inside a checkpoint's write": ("dpft.training.training_state", "save_file", _half_of_them),
    "after a checkpoint's write": ("dpft.training.checkpoint", "checkpoints", _kill),
    "inside the evaluation": ("dpft.commands.scoring", "score_model", _kill),
    "waiting in a step": ("dpft.training.training_run", "per_example_losses", _wait),
    "waiting in an evaluation": ("dpft.commands.scoring", "score_model", _wait),
    "inside the report": ("dpft.commands.closing_summary", "write_report", _kill),
}
"""Moment to the function in whose place, at some call of it, the process kills itself."""


def forking() -> ForkServerContext:
    """Return what forks processes from the warm server of this test worker."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.stories.warm"])
    return context


def start(root: Path, arguments: Sequence[str], *aim: Any) -> BaseProcess:
    """Start ``dpft arguments`` in a process of its own; what it says goes to ``root/log``.

    Args:
        root: Where it runs.
        arguments: Of the command.
        aim: One of ``AIMS`` and the number of the call, or neither.
    """
    process = forking().Process(target=_command, args=(root, tuple(arguments), *aim))
    process.start()
    return process


def _command(root: Path, arguments: Sequence[str], aim: str = "", call: int = 1) -> None:
    os.chdir(root)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    if aim:
        _arm(*AIMS[aim], call=call)
    raise SystemExit(main(list(arguments)))


def _arm(module: str, name: str, act: Callable[..., None], *, call: int) -> None:
    """Put ``act`` in place of the ``call``-th call of a function."""
    owner: Any = importlib.import_module(module)
    *classes, name = name.split(".")
    for each in classes:
        owner = getattr(owner, each)
    whole, calls = getattr(owner, name), list[None]()

    def armed(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        return act(*args, **kwargs) if len(calls) == call else whole(*args, **kwargs)

    setattr(owner, name, armed)


def kill_after_a_step(process: BaseProcess, ledger: Path, wait: float) -> None:
    """Kill a run a moment after its ledger has grown, or when it has ended by itself."""
    before = _size(ledger)
    wait_until(process, lambda: _size(ledger) > before)
    time.sleep(wait)
    process.kill()
    process.join(SECONDS)


def wait_until(process: BaseProcess, happens: Callable[[], bool]) -> None:
    """Wait for something that a process is to do, or for its end."""
    end = time.monotonic() + SECONDS
    while not happens() and process.is_alive():
        assert time.monotonic() < end, "the run does nothing"
        time.sleep(0.001)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def moment(folder: Path) -> str:
    """Return where a killed run was, from what it left."""
    private, ledger = folder / "private", read_ledger(folder / "ledger.jsonl")
    if list((private / "checkpoints").glob(".*.partial")):
        return "inside a checkpoint's write"
    if ledger.closed:
        return "after training"
    if ledger.torn_at is not None:
        return "inside the ledger's write"
    if max(read_journal(private / "steps.jsonl"), default=0) > ledger.steps:
        return "between journal and ledger"
    if ledger.steps > _updates(private / "diagnostics.jsonl"):
        return "between ledger and update"
    return "between two ledger lines"


def _updates(diagnostics: Path) -> int:
    """Return the newest step that diagnostics, written after each update, know of."""
    lines = diagnostics.read_text().splitlines() if diagnostics.exists() else []
    return max((json.loads(line).get("step", 0) for line in lines), default=0)
