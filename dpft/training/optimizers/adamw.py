"""torch's AdamW, on the private gradient DP-Adam (Li et al. 2022, section 3.1), and its Adam."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpft.errors import InputError
from dpft.training.optimizers.base import OPTIMIZERS, OptimizerConfig, check_unit_interval

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@OPTIMIZERS.register("adamw")
@dataclass(frozen=True, kw_only=True)
class AdamW(OptimizerConfig):
    """Adam whose weight decay is apart from the gradient (Loshchilov and Hutter 2019)."""

    name: str = "adamw"
    beta1: float = 0.9
    """Decay of the mean of gradients."""
    beta2: float = 0.999
    """Decay of the mean of squared gradients."""
    eps: float = 1e-8
    """Added to the root of that mean."""

    def __post_init__(self) -> None:
        check_unit_interval(beta1=self.beta1, beta2=self.beta2)
        if not self.eps > 0:
            raise InputError(f"optimizer.eps must be positive, got {self.eps}.")

    @property
    def decay_of_mean(self) -> float:
        """``beta1``."""
        return self.beta1

    def make(
        self, parameters: "Iterable[nn.Parameter]", learning_rate: float, weight_decay: float
    ) -> "Optimizer":
        """Returns ``torch.optim.AdamW``."""
        from torch.optim import AdamW as TorchAdamW

        return TorchAdamW(parameters, **self._arguments(learning_rate, weight_decay))

    def _arguments(self, learning_rate: float, weight_decay: float) -> dict[str, Any]:
        return {
            "lr": learning_rate,
            "betas": (self.beta1, self.beta2),
            "eps": self.eps,
            "weight_decay": weight_decay,
        }


@OPTIMIZERS.register("adam")
@dataclass(frozen=True, kw_only=True)
class Adam(AdamW):
    """Adam as first published, weight decay a part of the gradient (Kingma and Ba 2015)."""

    name: str = "adam"

    def make(
        self, parameters: "Iterable[nn.Parameter]", learning_rate: float, weight_decay: float
    ) -> "Optimizer":
        """Returns ``torch.optim.Adam``."""
        from torch.optim import Adam as TorchAdam

        return TorchAdam(parameters, **self._arguments(learning_rate, weight_decay))
