"""torch's gradient descent: DP-SGD (Abadi et al. 2016)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from dpft.errors import InputError
from dpft.training.optimizers.base import OPTIMIZERS, OptimizerConfig, check_unit_interval

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@OPTIMIZERS.register("sgd")
@dataclass(frozen=True, kw_only=True)
class SGD(OptimizerConfig):
    """Gradient descent; on the private gradient DP-SGD (Abadi et al. 2016)."""

    name: str = "sgd"
    momentum: float = 0.0
    """Share of the last update that stays; 0: none."""
    nesterov: bool = False
    """Look ahead along the momentum."""

    def __post_init__(self) -> None:
        check_unit_interval(momentum=self.momentum)
        if self.nesterov and not self.momentum:
            raise InputError("optimizer.nesterov=true needs optimizer.momentum above 0, got 0.0.")

    @property
    def decay_of_mean(self) -> float:
        """``momentum``."""
        return self.momentum

    def make(
        self, parameters: "Iterable[nn.Parameter]", learning_rate: float, weight_decay: float
    ) -> "Optimizer":
        """Returns ``torch.optim.SGD``; weight decay is a part of the gradient."""
        from torch.optim import SGD as TorchSGD

        return TorchSGD(
            parameters,
            lr=learning_rate,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=weight_decay,
        )

    def state_numbers(self, shape: Sequence[int]) -> int:
        """Returns how many numbers are kept for a parameter: the momentum, where there is one."""
        return prod(shape) if self.momentum else 0
