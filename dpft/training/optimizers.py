"""Optimizers and schedules: post-processing of the private gradient.

DP-Adam is ``torch.optim.AdamW`` fed the private gradient (Li et al. 2022, section 3.1).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from dpft.errors import InputError

OPTIMIZERS = ("adamw",)
SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear"}


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The ``optimizer`` section of the configuration."""

    name: str = "adamw"
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise InputError(
                f"optimizer.name must be one of {', '.join(OPTIMIZERS)}, got {self.name!r}."
            )
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"optimizer.{name} must be in [0, 1), got {getattr(self, name)}.")
        if not self.eps > 0:
            raise InputError(f"optimizer.eps must be positive, got {self.eps}.")


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """The ``scheduler`` section of the configuration."""

    name: str = "constant"
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        if self.name not in SCHEDULES:
            raise InputError(
                f"scheduler.name must be one of {', '.join(SCHEDULES)}, got {self.name!r}."
            )
        if self.warmup_steps < 0:
            raise InputError(
                f"scheduler.warmup_steps must not be negative, got {self.warmup_steps}."
            )


def make_optimizer(
    parameters: Iterable[nn.Parameter],
    config: OptimizerConfig,
    *,
    learning_rate: float,
    weight_decay: float,
) -> Optimizer:
    """Returns the optimizer that the configuration names, over ``parameters``."""
    return torch.optim.AdamW(
        parameters,
        lr=learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=weight_decay,
    )


def make_scheduler(optimizer: Optimizer, config: SchedulerConfig, *, steps: int) -> LambdaLR:
    """Returns the learning-rate schedule over ``steps`` steps."""
    schedule: LambdaLR = get_scheduler(
        SCHEDULES[config.name],
        optimizer,
        num_warmup_steps=config.warmup_steps,
        num_training_steps=steps,
    )
    return schedule
