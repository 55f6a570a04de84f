"""Ordinary, non-private gradients behind the interface of the private engine.

Non-private training is a choice of its own, ``privacy=none``, and never prints an epsilon.
"""

from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn

from dpft.privacy.clipping.engines.base import LossFunction, check_losses


class OrdinaryEngine:
    """Shuffled batches of a fixed size and the mean of their losses' gradients."""

    def __init__(
        self,
        model: nn.Module,
        *,
        steps: int,
        batch_size: int,
        seed: int,
        loss_scale: float = 1.0,
    ) -> None:
        """Plans ``steps`` batches of ``batch_size``, shuffled anew each epoch from ``seed``."""
        self._loss_scale = loss_scale
        self.steps = steps
        self._model = model
        self._batch_size = batch_size
        self._generator = torch.Generator().manual_seed(seed)
        self._waiting: list[int] = []
        self._drawn = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def draw(self, num_units: int) -> list[int]:
        """Starts a step: returns the indices of its batch."""
        for parameter in self._model.parameters():
            parameter.grad = None
        size = min(self._batch_size, num_units)
        while len(self._waiting) < size:
            self._waiting += torch.randperm(num_units, generator=self._generator).tolist()
        batch, self._waiting = self._waiting[:size], self._waiting[size:]
        self._drawn = size
        return batch

    def accumulate(
        self, compute_losses: LossFunction, units: Tensor | None = None
    ) -> Tensor | None:
        """Adds a micro-batch's share of the mean gradient; there are no norms to return."""
        losses = compute_losses()
        check_losses(losses)
        torch.autograd.backward(losses.sum() * (self._loss_scale / self._drawn))
        return None

    def finish_step(self) -> None:
        """Ends a step: takes the loss scale out of the gradient."""
        if self._loss_scale != 1:
            for parameter in self._model.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(self._loss_scale)
