"""What a line of ``make gpu-check`` is: some work on a device, and a verdict on what was seen."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Given:
    """What every line is given."""

    device: str
    """What computes, as ``train.device`` names it."""
    quick: bool
    """Whether small shapes and few repetitions do."""
    folder: str
    """Where lines write."""
    threads: int = 1
    """Of the processor, for each line."""

    def place(self, name: str) -> Path:
        """Return a folder for a line, made."""
        path = Path(self.folder) / name
        path.mkdir(parents=True, exist_ok=True)
        return path


@dataclass(frozen=True)
class Verdict:
    """What a line saw."""

    holds: bool | None
    """None: it was only measured."""
    seen: str
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One check."""

    work: Callable[[Given], Verdict]
    limit: float
    """Most seconds that it may take."""
    says: str
    """What is checked, for the table."""
    alone: bool = False
    """Whether nothing else may run beside it, since it is timed."""
