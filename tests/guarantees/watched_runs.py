"""Run dpft, observe its run and interrupt it, through PyTorch and the standard library only.

The tests of this folder survive a rewrite of dpft, because they know the command line and the files
of a run's folder, and no module below ``dpft``.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from tests.stories.tiny import TRAINING, Outcome, Workspace

STEPS = 5
RUN = (
    "train", *TRAINING, f"train.steps={STEPS}", "train.checkpoint_every=2",
    "privacy.noise_multiplier=1", "eval.enabled=false",
)  # fmt: skip
"""A private run of five steps with checkpoints after steps 0, 2, 4 and 5."""
SEEDED = (*RUN, "privacy.noise_seed=3")
"""The same run with reproducible noise."""
KEY_FILES = ("generators.json", "keys")
"""Names that a file with secret keys may have, or its folder."""
HEX_KEY = re.compile(r"\b[0-9a-f]{64}\b")


@contextmanager
def before_updates(action: Callable[[int], None]) -> Iterator[None]:
    """Call ``action`` before an optimizer changes weights, with the number of the update from 1."""
    updates = 0

    def hook(_optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        nonlocal updates
        updates += 1
        action(updates)

    handle = register_optimizer_step_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def interrupted(
    workspace: Workspace,
    folder: str,
    *overrides: str,
    update: int = 4,
    error: BaseException | None = None,
) -> Outcome:
    """Start a run that ends before its ``update``-th update, by default with an interrupt.

    The step's line is in the ledger by then, and the weights have not changed.
    """

    def interrupt(number: int) -> None:
        if number == update:
            raise error or KeyboardInterrupt

    with before_updates(interrupt):
        return workspace.run(*(overrides or SEEDED), f"hydra.run.dir={folder}")


@contextmanager
def file_events() -> Iterator[list[tuple[str, Path]]]:
    """Return a list that grows by each file that is opened to write, and each target of a rename.

    Files that are only appended to are left out.
    """
    events: list[tuple[str, Path]] = []
    _listeners.append(events)
    if len(_listeners) == 1 and not _is_installed:
        _is_installed.append(True)
        sys.addaudithook(_tell_listeners)
    try:
        yield events
    finally:
        _listeners.remove(events)


def _tell_listeners(event: str, arguments: tuple[Any, ...]) -> None:
    if not _listeners:
        return
    if event == "open" and isinstance(arguments[0], str | os.PathLike):
        flags = arguments[2] if isinstance(arguments[2], int) else 0
        if flags & (os.O_WRONLY | os.O_RDWR) and not flags & os.O_APPEND:
            for events in _listeners:
                events.append(("open", Path(arguments[0]).absolute()))
    elif event == "os.rename":
        for events in _listeners:
            events.append(("rename", Path(os.fsdecode(arguments[1])).absolute()))


_listeners: list[list[tuple[str, Path]]] = []
_is_installed: list[bool] = []
"""Whether the audit hook is installed; Python cannot remove one."""


def ledger_lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's ledger."""
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


def ledger_steps(folder: Path) -> list[int]:
    """Return the number of each noisy step in a run's ledger."""
    return [line["step"] for line in ledger_lines(folder) if "step" in line]


def public_files(folder: Path) -> dict[str, bytes]:
    """Return the content of each file of a run outside ``private/``, by its path in the folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] != "private"
    }


def secret_keys(folder: Path) -> set[str]:
    """Return the secret keys that a run's folder holds now, in hexadecimal."""
    return {
        key
        for path in (folder / "private").rglob("*")
        if path.is_file() and {path.name, path.parent.name} & {*KEY_FILES}
        for key in HEX_KEY.findall(path.read_text())
    }


def edit(path: Path, before: str, after: str) -> None:
    """Replace a text in a file that contains it."""
    text = path.read_text()
    assert before in text, f"{path} must contain {before}"
    path.write_text(text.replace(before, after))
