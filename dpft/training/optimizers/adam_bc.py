"""DP-AdamBC: Adam that takes the noise out of its second moment (Tang et al. 2023, 2312.14334)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpft.errors import InputError
from dpft.training.optimizers.base import OPTIMIZERS, OptimizerConfig, check_unit_interval

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@OPTIMIZERS.register("adam_bc")
@dataclass(frozen=True, kw_only=True)
class AdamBC(OptimizerConfig):
    """Adam whose second moment is that of the gradient without its noise (DP-AdamBC).

    The noise adds its variance, the same for every number, to the mean of squared gradients, and
    where it is most of it Adam divides all numbers by nearly the same. Here the variance, which is
    public, is taken away before the root. Weight decay is apart from the gradient, as in AdamW.
    """

    needs_noise_std: ClassVar[bool] = True
    name: str = "adam_bc"
    beta1: float = 0.9
    """Decay of the mean of gradients."""
    beta2: float = 0.999
    """Decay of the mean of squared gradients."""
    floor: float = 0.1
    """Least second moment that is left, as a share of the noise's variance: the paper's gamma' is
    this times that variance. It bounds how much faster than Adam a number may move, by about one
    over its root."""

    def __post_init__(self) -> None:
        check_unit_interval(beta1=self.beta1, beta2=self.beta2)
        if not self.floor > 0:
            raise InputError(f"optimizer.floor must be positive, got {self.floor}.")

    @property
    def decay_of_mean(self) -> float:
        """``beta1``."""
        return self.beta1

    def make(
        self, parameters: "Iterable[nn.Parameter]", learning_rate: float, weight_decay: float
    ) -> "Optimizer":
        """Returns the optimizer; who takes its steps tells it the noise before each."""
        from dpft.training.bias_corrected_adam import BiasCorrectedAdam

        return BiasCorrectedAdam(
            parameters,
            lr=learning_rate,
            betas=(self.beta1, self.beta2),
            floor=self.floor,
            weight_decay=weight_decay,
        )
