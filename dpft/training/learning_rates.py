"""The learning rate of each step, over a method's phases, which may have rates of their own."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from dpft.errors import InputError
from dpft.methods.base import MethodPhase

if TYPE_CHECKING:
    from dpft.training.training_state import TrainingState


def learning_rate_of(training_state: "TrainingState", step: int) -> float:
    """Returns the learning rate that step ``step`` (counted from 1) was taken with."""
    scheduler = training_state.scheduler
    return float(scheduler.base_lrs[0] * scheduler.lr_lambdas[0](step - 1))


def learning_rate_factor(
    phases: Sequence[MethodPhase], learning_rate: float
) -> Callable[[int], float] | None:
    """Returns what multiplies ``learning_rate`` at each step (counted from 0); None: nothing does.

    Raises:
        InputError: A phase has a rate of its own and ``learning_rate`` is 0.
    """
    given = [phase.learning_rate for phase in phases if phase.learning_rate is not None]
    if not given:
        return None
    if learning_rate == 0:
        raise InputError(
            f"train.learning_rate must be positive where a phase has a learning rate of its own, "
            f"got 0 and {given[0]:g}; give both, or neither."
        )
    rates = [learning_rate if p.learning_rate is None else p.learning_rate for p in phases]
    ends = list(accumulate(phase.steps for phase in phases))

    def factor(step: int) -> float:
        # The schedule is asked once more after the last step.
        return rates[min(bisect_right(ends, step), len(rates) - 1)] / learning_rate

    return factor
