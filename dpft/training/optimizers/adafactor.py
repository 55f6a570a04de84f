"""Adafactor as T5 has it, of Ponomareva et al. 2022."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

from dpft.errors import InputError
from dpft.training.optimizers.base import OPTIMIZERS, OptimizerConfig

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@OPTIMIZERS.register("adafactor")
@dataclass(frozen=True, kw_only=True)
class Adafactor(OptimizerConfig):
    """Adam with second moments by rows and columns (Shazeer and Stern 2018, arXiv 1804.04235).

    That of transformers, which is Algorithms 4 and 5 as T5X has them: the learning rate, by default
    times the tensor's own root mean square; no momentum. torch's is another: it takes no learning
    rate above one over the root of the number of steps, and it keeps second moments from falling
    below 1e-14, while a private gradient's are often smaller (noise 0.4, clipping norm 0.001 and a
    batch of 8,192, as in Ponomareva et al. 2022, give 2e-15).

    What differs from T5X: of a tensor of three dimensions or more the last two are factored, T5X
    takes the two largest (T5 has none); weight decay, off by default, is times the tensor's own
    step size (T5X's is times nothing), and its value is unpublished.
    """

    works_on_shards: ClassVar[bool] = False
    name: str = "adafactor"
    beta2_decay: float = -0.8
    """Exponent: at step t, second moments keep a share of 1 - t ** beta2_decay."""
    eps1: float = 1e-30
    """Added to squared gradients."""
    eps2: float = 1e-3
    """Least root mean square of a tensor, for one that begins at zero."""
    clip_threshold: float = 1.0
    """Root mean square above which an update is scaled down; not the clipping of examples."""
    scale_parameter: bool = True
    """Whether a tensor moves by the learning rate times its own root mean square."""
    min_dim_size_to_factor: int = 128
    """Least rows and columns of a matrix whose second moments are kept by rows and columns; those
    of a smaller one are kept whole. 1: of every matrix, as first published."""

    def __post_init__(self) -> None:
        if not self.beta2_decay <= 0:
            raise InputError(f"optimizer.beta2_decay must not be positive, got {self.beta2_decay}.")
        for name, value in (("eps1", self.eps1), ("eps2", self.eps2)):
            if not value >= 0:
                raise InputError(f"optimizer.{name} must not be negative, got {value}.")
        if not self.clip_threshold >= 1:
            raise InputError(
                f"optimizer.clip_threshold must be at least 1, got {self.clip_threshold}."
            )
        if self.min_dim_size_to_factor < 1:
            raise InputError(
                "optimizer.min_dim_size_to_factor must be at least 1, got"
                f" {self.min_dim_size_to_factor}."
            )

    def make(
        self, parameters: "Iterable[nn.Parameter]", learning_rate: float, weight_decay: float
    ) -> "Optimizer":
        """Returns transformers' Adafactor, which factors what T5X does; weight decay is apart."""
        from dpft.training.t5_adafactor import Adafactor as T5Adafactor

        return T5Adafactor(
            parameters,
            min_dim_size_to_factor=self.min_dim_size_to_factor,
            lr=learning_rate,
            decay_rate=self.beta2_decay,
            eps=(self.eps1, self.eps2),
            clip_threshold=self.clip_threshold,
            weight_decay=weight_decay,
            scale_parameter=self.scale_parameter,
            relative_step=False,
            warmup_init=False,
        )

    def state_numbers(self, shape: Sequence[int]) -> int:
        """Returns how many numbers are kept for a parameter: of a large matrix rows and columns."""
        from dpft.training.t5_adafactor import is_factored

        if not is_factored(shape, self.min_dim_size_to_factor):
            return prod(shape)
        return prod(shape[:-1]) + prod((*shape[:-2], shape[-1]))
