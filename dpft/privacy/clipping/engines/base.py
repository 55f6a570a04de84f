"""What an engine is, and the checks of a loss that all engines share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpft.errors import InputError, RunError
from dpft.privacy.clipping.factors import ClippingStyle

LossFunction = Callable[[], Tensor]
"""Computes per-example losses, shape (b,), with a graph back to the parameters."""


@dataclass(frozen=True)
class ClippedBatch:
    """What one accumulation says of its examples; all of it is private.

    Attributes:
        norms: Gradient norms before clipping, shape (b,), or (units,) where units were given;
            0 where the loss or the gradient was not finite.
        non_finite: How many examples (or units) were left out as not finite.
    """

    norms: Tensor
    non_finite: int


class Engine(ABC):
    """Adds the clipped sum of a batch to the gradients of the trainable parameters."""

    def __init__(self, model: nn.Module, style: ClippingStyle) -> None:
        """Prepares for a model.

        Raises:
            InputError: The model has no trainable parameter, or one in half precision.
        """
        self.model = model
        self.style = style
        self.names: dict[Tensor, str] = dict(trainable_parameters(model))
        if not self.names:
            raise InputError("the model must have a trainable parameter, got none.")
        for parameter, name in self.names.items():
            if parameter.dtype not in (torch.float32, torch.float64):
                raise InputError(
                    f"trainable parameter {name} must be float32 or float64, got "
                    f"{parameter.dtype}; load the model in float32."
                )

    def check_unchanged(self) -> None:
        """Refuses a model whose trainable parameters are not those it was prepared with.

        Raises:
            RunError: A parameter was frozen, unfrozen or replaced since.
        """
        now = dict(trainable_parameters(self.model))
        changed = [name for p, name in now.items() if p not in self.names]
        changed += [name for p, name in self.names.items() if p not in now]
        if changed:
            raise RunError(
                f"the trainable parameters must stay those the clipper was made for, but "
                f"{changed[0]} was frozen, unfrozen or replaced; make a new one."
            )

    @abstractmethod
    def install(self) -> None:
        """Makes the model ready for ``accumulate``."""

    @abstractmethod
    def remove(self) -> None:
        """Makes the model what it was before ``install``."""

    @abstractmethod
    def accumulate(self, losses: Tensor, units: Tensor | None) -> ClippedBatch:
        """Adds sum over i of ``C_i * gradient[i]`` to every trainable parameter's ``grad``.

        Args:
            losses: Per-example losses, shape (b,), b at least 1.
            units: Privacy unit of each row, shape (b,), or None where each row is its own.
        """


def trainable_parameters(model: nn.Module) -> Iterator[tuple[nn.Parameter, str]]:
    """Yields each trainable parameter, a tied one once, with its name."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield parameter, name


def check_losses(losses: Tensor) -> None:
    """Refuses losses that are not one per example with a graph.

    Raises:
        InputError: Wrong shape, already reduced, or without a graph.
    """
    if losses.dim() != 1:
        raise InputError(
            f"losses must have shape (b,), one per example, got {tuple(losses.shape)}; "
            "do not reduce over the batch."
        )
    if not losses.requires_grad:
        raise InputError(
            "losses must require grad, got losses without a graph; compute them with gradients "
            "enabled from the clipped model."
        )


def check_units(units: Tensor, batch_size: int) -> None:
    """Refuses units that do not name one unit per row.

    Raises:
        InputError: ``units`` is not of shape (b,).
    """
    if units.shape != (batch_size,):
        raise InputError(
            f"units must have shape ({batch_size},), one unit per row, got {tuple(units.shape)}."
        )


def gradient_buffer(parameter: Tensor) -> Tensor:
    """Returns the tensor that clipped sums of ``parameter`` are added to, made if need be."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
