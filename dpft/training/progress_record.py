"""The lines of progress.jsonl, and functions that read them."""

import json
from pathlib import Path
from typing import Annotated

from pydantic import Field

from dpft.errors import StateError
from dpft.evaluation.scores import SplitScores
from dpft.strict_model import Count, NotNegative, Positive, Versioned, as_json, parse

WINDOW = 10
"""Minimum number of steps whose total duration may be public."""
TenOrMore = Annotated[int, Field(ge=WINDOW)]


class ProgressLine(Versioned):
    """Public information about a run after a number of steps."""

    step: TenOrMore
    """Number of steps that the weights had taken."""
    since: Count | None = None
    """The step from which ``seconds`` is measured, at least ten steps earlier; absent if
    ``seconds`` is absent."""
    seconds: Positive | None = None
    """Duration of the steps after ``since`` in seconds, without scoring; absent if fewer than ten
    steps were measured."""
    learning_rate: NotNegative | None = None
    """Learning rate of the step."""
    epsilon: NotNegative | None = None
    """Upper bound of the epsilon spent by the steps so far; absent for a non-private run."""
    evaluations: tuple[SplitScores, ...] | None = None
    """Scores of a public split, for each part of the split, as configured by eval.every_steps or
    eval.every_epochs. The scores before and after training are in metrics.json."""


def read_progress(path: Path) -> list[ProgressLine]:
    """Return the lines of a progress record; skip an incomplete last line after a crash.

    Raises:
        StateError: The file is damaged.
    """
    if not path.exists():
        return []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        return [parse(json.loads(line), ProgressLine) for line in lines]
    except (OSError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise StateError(f"{path} is damaged: {reason}. Remove it to start a new one.") from error


def progress_text(line: ProgressLine) -> str:
    """Return a line as text for the file."""
    return json.dumps(as_json(line), sort_keys=True) + "\n"
