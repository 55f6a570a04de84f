"""Model, optimizer and schedule: what a step moves, and how it is read and put back."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from dpft.training.averaging import WeightAverage

AVERAGE = "average"
ON_HOST = ("step", "noise_moment")
"""Numbers of an optimizer that it reads itself, so that no device has to be asked for them."""


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """Model, optimizer and schedule: what a step moves, and a checkpoint keeps."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: LambdaLR
    average: WeightAverage | None = None
    """Of what the optimizer moves; None: none is asked for."""


def optimized_parameters(training_state: TrainingState) -> list[nn.Parameter]:
    """Returns what the optimizer moves, in whichever phase."""
    return [p for group in training_state.optimizer.param_groups for p in group["params"]]


def moved_while_frozen(training_state: TrainingState) -> frozenset[str]:
    """Returns the names of what the optimizer moves though it takes no gradient of its own.

    Asked at the first step: what trains in a phase and is frozen in the next is none of it.
    """
    moved = set(optimized_parameters(training_state))
    parameters = training_state.model.named_parameters()
    return frozenset(name for name, p in parameters if p in moved and not p.requires_grad)


def model_state(model: nn.Module) -> dict[str, Tensor]:
    """Returns parameters, a tied one once, and persistent buffers, by name."""
    persistent = model.state_dict(keep_vars=True)
    buffers = {name: b for name, b in model.named_buffers() if name in persistent}
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return {**parameters, **buffers}


def optimizer_state(training_state: TrainingState) -> dict[str, Tensor]:
    """Returns the optimizer's tensors, and the average's, as ``<parameter name>/<key>``."""
    names: dict[Tensor, str] = {
        parameter: name for name, parameter in training_state.model.named_parameters()
    }
    state = {
        f"{names[parameter]}/{key}": value if isinstance(value, Tensor) else torch.as_tensor(value)
        for parameter, entries in training_state.optimizer.state.items()
        for key, value in entries.items()
    }
    means = {} if training_state.average is None else training_state.average.tensors
    return state | {f"{names[p]}/{AVERAGE}": tensor for p, tensor in means.items()}


def restore_optimizer(training_state: TrainingState, tensors: Mapping[str, Tensor]) -> None:
    """Gives optimizer and average what ``optimizer_state`` returned, and nothing else."""
    named = dict(training_state.model.named_parameters())
    average = training_state.average
    training_state.optimizer.state.clear()
    if average is not None:
        average.tensors.clear()
    for label, tensor in tensors.items():
        name, key = label.rsplit("/", 1)
        parameter = named[name]
        moved = tensor if key in ON_HOST else tensor.to(parameter.device)
        if key == AVERAGE:
            assert average is not None  # A checkpoint with another one was refused.
            average.tensors[parameter] = moved
        else:
            training_state.optimizer.state[parameter][key] = moved


def restore_scheduler(training_state: TrainingState, step: int) -> None:
    """Puts the schedule, and the optimizer's learning rates, to after ``step`` steps."""
    training_state.scheduler.last_epoch = step
    rates = [
        base * factor(step)
        for base, factor in zip(
            training_state.scheduler.base_lrs, training_state.scheduler.lr_lambdas, strict=True
        )
    ]
    for group, rate in zip(training_state.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
