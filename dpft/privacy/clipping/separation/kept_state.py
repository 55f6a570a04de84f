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

    @property
    def was_left(self) -> bool:
        """Whether anything was drawn since."""
        now = type(self).now(self.device)
        same = torch.equal(now.cpu, self.cpu)
        if self.cuda is not None and now.cuda is not None:
            same = same and torch.equal(now.cuda, self.cuda)
        return not same


class Buffers:
    """A model's buffers as they are now: which they are, what they hold, and what changed."""

    def __init__(self, root: nn.Module) -> None:
        """Copies what the buffers hold."""
        self._kept = [
            (module, name, buffer, buffer.clone())
            for module in root.modules()
            for name, buffer in module.named_buffers(recurse=False)
        ]

    def restore(self) -> None:
        """Puts back the buffers that were replaced, and what they held."""
        with torch.no_grad():
            for module, name, buffer, before in self._kept:
                module._buffers[name] = buffer
                buffer.copy_(before)

    def changed(self) -> dict[tuple[nn.Module, str], Tensor]:
        """Returns copies of the buffers that hold something else since."""
        return {
            (module, name): now.clone()
            for module, name, _, before in self._kept
            if (now := module._buffers.get(name)) is not None and not torch.equal(now, before)
        }


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
    buffers = Buffers(root)
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            buffers.restore()


class Modes:
    """Which modules of a model train, as it is now."""

    def __init__(self, root: nn.Module) -> None:
        """Notes every module's switch."""
        self._modes = [(module, module.training) for module in root.modules()]

    def restore(self) -> None:
        """Puts the switches back."""
        for module, mode in self._modes:
            module.training = mode


class Kept:
    """Buffers and modes of a model, to be put back after a run that nobody is to see."""

    def __init__(self, root: nn.Module) -> None:
        """Copies and notes them."""
        self._buffers, self._modes = Buffers(root), Modes(root)

    def restore(self) -> None:
        """Puts them back."""
        self._buffers.restore()
        self._modes.restore()


@contextmanager
def evaluating(root: nn.Module) -> Iterator[None]:
    """Puts every module into evaluation mode for a while."""
    modes = Modes(root)
    root.eval()
    try:
        yield
    finally:
        modes.restore()
