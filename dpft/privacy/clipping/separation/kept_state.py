"""State that a model's extra runs must leave as it was: random numbers, buffers, modes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class RandomState:
    """The state of torch's generators, of the CPU and of one device."""

    device: torch.device
    cpu: Tensor
    cuda: Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> Self:
        """Returns the state that the generators are in now."""
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(device, torch.get_rng_state(), cuda)

    def restore(self) -> None:
        """Puts the state back, so that what was drawn after ``now`` is drawn again."""
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, self.device)


@contextmanager
def random_state_kept_on_failure(device: torch.device) -> Iterator[None]:
    """Puts the random state back if the body raises: a second attempt draws the same numbers."""
    state = RandomState.now(device)
    try:
        yield
    except BaseException:
        state.restore()
        raise


@contextmanager
def state_kept(root: nn.Module) -> Iterator[None]:
    """Puts random state and the model's buffers back at the end: nobody is to see the runs."""
    devices = {p.device.index for p in root.parameters() if p.device.type == "cuda"}
    buffers = [(buffer, buffer.clone()) for buffer in root.buffers()]
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


@contextmanager
def evaluating(root: nn.Module) -> Iterator[None]:
    """Puts every module into evaluation mode for a while.

    Recurrent layers only drop nothing: cuDNN runs them back in training mode alone.
    """
    modes = [(module, module.training) for module in root.modules()]
    recurrent = [(m, m.dropout) for m in root.modules() if isinstance(m, nn.RNNBase)]
    root.eval()
    for layer, _ in recurrent:
        layer.training, layer.dropout = True, 0.0
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for layer, rate in recurrent:
            layer.dropout = rate
