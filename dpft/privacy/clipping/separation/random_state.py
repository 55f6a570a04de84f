"""The random state that a model draws its dropout masks from: kept, and put back."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


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
