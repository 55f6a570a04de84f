"""Learning rates: schedules over a method's phases; they read no record and cost no privacy."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from dpft.errors import InputError
from dpft.methods.base import MethodPhase

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR

    from dpft.training.training_state import TrainingState


SCHEDULES = {
    "constant": "constant_with_warmup",
    "linear": "linear",
    "cosine": "cosine",
    "inverse_sqrt": "inverse_sqrt",
    "rsqrt": "constant",
}
"""Our names to those of transformers, which rsqrt is not among."""


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """The ``scheduler`` section of the configuration."""

    name: str = "constant"
    """constant, linear, cosine, inverse_sqrt or rsqrt; chosen by scheduler=NAME."""
    warmup_steps: int = 0
    """Steps in which the learning rate rises linearly from 0, the first of which moves nothing; for
    rsqrt those in which it stays as it is, before it falls as one over the root of the step."""
    timescale: int | None = None
    """For inverse_sqrt: after warm-up it falls as 1 / sqrt(1 + steps since / timescale).

    Null takes the steps of the warm-up, or 10,000 where there is none.
    """

    def __post_init__(self) -> None:
        if self.name not in SCHEDULES:
            raise InputError(
                f"scheduler.name must be one of {', '.join(SCHEDULES)}, got {self.name!r}."
            )
        if self.warmup_steps < 0:
            raise InputError(
                f"scheduler.warmup_steps must not be negative, got {self.warmup_steps}."
            )
        if self.name == "rsqrt" and self.warmup_steps < 1:
            raise InputError(
                "scheduler.warmup_steps must be at least 1 for scheduler=rsqrt, which is constant"
                f" for so many steps, got {self.warmup_steps}; T5 has 10000."
            )
        if self.timescale is not None and self.name != "inverse_sqrt":
            raise InputError(
                f"scheduler.timescale must be null for scheduler={self.name}, got "
                f"{self.timescale}; only scheduler=inverse_sqrt has one."
            )
        if self.timescale is not None and self.timescale < 1:
            raise InputError(f"scheduler.timescale must be at least 1, got {self.timescale}.")


def make_scheduler(
    optimizer: "Optimizer",
    config: SchedulerConfig,
    *,
    steps: int,
    factor: Callable[[int], float] | None = None,
) -> "LambdaLR":
    """Returns the learning-rate schedule over ``steps`` steps.

    Args:
        optimizer: Whose learning rate it sets.
        config: Which schedule.
        steps: Steps planned.
        factor: Steps taken (0 before the first) to what the schedule's value is multiplied by.
    """
    from torch.optim.lr_scheduler import LambdaLR
    from transformers import get_scheduler

    if config.name == "rsqrt":
        times = factor or (lambda step: 1.0)
        return LambdaLR(optimizer, lambda step: rsqrt(step + 1, config.warmup_steps) * times(step))
    settings = {"timescale": config.timescale} if config.name == "inverse_sqrt" else None
    schedule: LambdaLR = get_scheduler(
        SCHEDULES[config.name],
        optimizer,
        num_warmup_steps=config.warmup_steps,
        num_training_steps=steps,
        scheduler_specific_kwargs=settings,
    )
    if factor is None:
        return schedule
    shape = schedule.lr_lambdas[0]
    return LambdaLR(optimizer, lambda step: shape(step) * factor(step))


def schedule_factors(config: SchedulerConfig, steps: int) -> list[float]:
    """Returns what the learning rate is multiplied by at each of ``steps`` steps."""
    from torch import nn, zeros
    from torch.optim import SGD as TorchSGD

    unmoved = TorchSGD([nn.Parameter(zeros(1))], lr=1.0)
    factor = make_scheduler(unmoved, config, steps=steps).lr_lambdas[0]
    return [float(factor(step)) for step in range(steps)]


def rsqrt(step: int, warmup: int) -> float:
    """Returns T5's schedule, min(1, sqrt(warmup / step)) (Raffel et al. 2020, section 3.1.2).

    >>> rsqrt(1, 100), rsqrt(100, 100), rsqrt(400, 100)
    (1.0, 1.0, 0.5)

    Args:
        step: Counted from 1.
        warmup: Steps before the learning rate falls; there is no ramp.
    """
    return min(1.0, math.sqrt(warmup / step))


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
