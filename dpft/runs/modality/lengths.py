"""How long a task's records may be on a model: a length that fits, and whether a given one does."""

import logging

from dpft.errors import InputError
from dpft.models.architecture import Architecture
from dpft.models.positions import max_positions
from dpft.tasks.base import TextualTask

logger = logging.getLogger(__name__)


def fitted_task(
    task: TextualTask, architecture: Architecture, extra_positions: int = 0
) -> TextualTask:
    """Returns the task with a length for its examples that the model has positions for.

    Args:
        task: A length that it states stands, whether it fits or not.
        architecture: Of the model.
        extra_positions: Positions that the method takes before a text's own.
    """
    positions = max_positions(architecture.config())
    room = None if positions is None else _room(positions, extra_positions)
    fitted = task.fitted(room)
    if fitted.longest < task.longest:
        logger.info(
            "task.max_length=%d: the positions that model=%s has for a text, since none is given",
            fitted.longest,
            architecture.model.name,
        )
    return fitted


def check_lengths(
    task: TextualTask,
    architecture: Architecture,
    *,
    max_new_tokens: int | None,
    extra_positions: int = 0,
) -> None:
    """Refuses texts longer than the positions that the model has for them.

    Args:
        task: Says how long its records may be.
        architecture: Of the model.
        max_new_tokens: Tokens it may write; None where it writes none.
        extra_positions: Positions that the method takes before a text's own.

    Raises:
        InputError: Records, or an input with its prediction, may not fit.
    """
    positions = max_positions(architecture.config())
    if positions is None:
        return
    room = _room(positions, extra_positions)
    there = f"the model's {positions} positions"
    if extra_positions:
        there = f"{room}, {there} less {extra_positions} that the method takes"
    if task.longest > room:
        raise InputError(
            f"task.max_length must be at most {there}, got {task.longest}; set"
            f" task.max_length={room}, or choose a model with more."
        )
    if max_new_tokens is not None and max_new_tokens >= room:
        raise InputError(
            f"decode.max_new_tokens must be below {there}, got {max_new_tokens}; lower it, or"
            " choose a model with more."
        )


def _room(positions: int, extra_positions: int) -> int:
    """Returns the positions left for a text, at least one."""
    if extra_positions >= positions:
        raise InputError(
            f"method must take fewer than the model's {positions} positions for its prompt or"
            f" prefix, got {extra_positions}; shorten it, or choose a model with more."
        )
    return positions - extra_positions
