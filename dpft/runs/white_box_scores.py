"""The scores that ``audit.white_box=true`` wrote down, and what an attacker makes of them.

Nothing here looks at a coin: what a score is worth shows in how much the scores of all canaries
vary. Shapes: m canaries.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dpft.errors import InputError, StateError
from dpft.run_folder import WHITE_BOX

SHORTEST = 1e-30
"""The least variance that is believed."""


@dataclass(frozen=True, kw_only=True)
class StepScores:
    """Each canary's score at each step of a run, less the mean of all canaries at that step."""

    now: Tensor
    """Along the canary's gradient at the step's own weights, shape (steps, m), float64."""
    before: Tensor
    """Along its gradient before training, shape (steps, m), float64."""


def read_white_box(folder: Path, *, canaries: int, steps: int) -> StepScores:
    """Returns the scores of a run.

    Raises:
        InputError: Scores of a step are missing.
        StateError: The file is damaged.
    """
    path = folder / WHITE_BOX
    by_step = {step: json.loads(line) for step, line in step_lines(path)}
    if set(by_step) != set(range(1, steps + 1)):
        raise InputError(
            f"{path} must hold scores of all {steps} steps, got {len(by_step)}: train the run anew"
            " with audit.white_box=true, or audit it by its model alone with"
            " audit.white_box=false."
        )
    found = {}
    for name in ("now", "before"):
        rows = [by_step[step].get(name, ()) for step in sorted(by_step)]
        if any(len(scores) != canaries for scores in rows):
            raise _damaged(path)
        found[name] = _centered(torch.tensor(rows, dtype=torch.float64))
    return StepScores(now=found["now"], before=found["before"])


def sums(scores: StepScores) -> list[float]:
    """Returns the sum of each canary's scores, shape (m,).

    Each step counts by how little its scores vary, which tells of no coin: where they vary much,
    it is for what canaries differ in anyway.
    """
    weights = 1 / _variances(scores.now)
    return [float(score) for score in (scores.now * weights).sum(dim=0)]


def differences(scores: StepScores) -> list[float]:
    """Returns how far each canary's scores at two steps in a row are apart, shape (m,).

    Where both steps had the same noise it is gone, and what is left are the canaries that joined
    one of them alone. Squares are added up, each pair of steps by how little its differences vary:
    one whose noise is gone, by far the most.
    """
    apart = _centered(scores.before[1:] - scores.before[:-1])
    return [float(score) for score in (apart / _variances(apart)).square().sum(dim=0)]


def _variances(rows: Tensor) -> Tensor:
    return rows.square().mean(dim=1, keepdim=True).clamp(min=SHORTEST)


def _centered(rows: Tensor) -> Tensor:
    return rows - rows.mean(dim=1, keepdim=True)


def step_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields each step that has scores, with its line; none of a line that was never ended.

    Raises:
        StateError: The file is damaged.
    """
    if not path.exists():
        return
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    for line in lines:
        try:
            yield int(json.loads(line)["step"]), line
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(path) from error


def _damaged(path: Path) -> StateError:
    return StateError(f"{path} is damaged: it must hold a line of scores for each step.")
