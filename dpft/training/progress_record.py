"""The lines of progress.jsonl, and reading them."""

import json
from pathlib import Path
from typing import Annotated

from pydantic import Field

from dpft.errors import StateError
from dpft.evaluation.scores import SplitScores
from dpft.strict_model import Count, NotNegative, Positive, Versioned, as_json, parse

WINDOW = 10
"""Fewest steps whose time together may show."""
TenOrMore = Annotated[int, Field(ge=WINDOW)]


class ProgressLine(Versioned):
    """What is public of a run after a number of steps."""

    step: TenOrMore
    """Steps that the weights had taken."""
    since: Count | None = None
    """The step from which the seconds count, at least ten steps before; absent with them."""
    seconds: Positive | None = None
    """How long the steps since then took, without scoring; absent if fewer than ten are known."""
    learning_rate: NotNegative | None = None
    """The learning rate of the step."""
    epsilon: NotNegative | None = None
    """Upper bound of what the steps so far had spent; absent without privacy."""
    evaluations: tuple[SplitScores, ...] | None = None
    """Scores of a public split, by eval.every_steps or eval.every_epochs, one for each part of
    it; before and after training the scores are in metrics.json."""


def read_progress(path: Path) -> list[ProgressLine]:
    """Return the lines of a progress record; a last line that a crash cut off is left out.

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
    """Return a line as the file has it."""
    return json.dumps(as_json(line), sort_keys=True) + "\n"
