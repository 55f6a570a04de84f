"""Muon on the private gradient, beside AdamW (Jordan et al. 2024; Liu et al. 2025, 2502.16982)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpft.errors import InputError
from dpft.training.optimizers.base import OPTIMIZERS, OptimizerConfig, check_unit_interval

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@OPTIMIZERS.register("muon")
@dataclass(frozen=True, kw_only=True)
class Muon(OptimizerConfig):
    """Momentum made orthogonal for the matrices of hidden layers, AdamW for all else.

    ``torch.optim.Muon`` moves what has two dimensions and is neither a table of embeddings nor part
    of a head; ``torch.optim.AdamW`` moves the rest. A matrix's update is scaled to the size of
    AdamW's (Liu et al. 2025, arXiv 2502.16982, section 2.2), so that one learning rate and one
    weight decay serve both.
    """

    works_on_shards: ClassVar[bool] = False
    name: str = "muon"
    momentum: float = 0.95
    """Share of the last mean of a matrix's gradients that stays."""
    nesterov: bool = True
    """Look ahead along that mean."""
    newton_schulz_steps: int = 5
    """Iterations by which a mean is made orthogonal."""
    beta1: float = 0.9
    """Of AdamW: decay of the mean of gradients."""
    beta2: float = 0.999
    """Of AdamW: decay of the mean of squared gradients."""
    eps: float = 1e-8
    """Of AdamW: added to the root of that mean."""

    def __post_init__(self) -> None:
        check_unit_interval(momentum=self.momentum, beta1=self.beta1, beta2=self.beta2)
        if not self.eps > 0:
            raise InputError(f"optimizer.eps must be positive, got {self.eps}.")
        if not 1 <= self.newton_schulz_steps < 100:
            raise InputError(
                "optimizer.newton_schulz_steps must be from 1 to 99, got"
                f" {self.newton_schulz_steps}."
            )

    @property
    def decay_of_mean(self) -> float:
        """``momentum``, that of the matrices."""
        return self.momentum

    def make(
        self, parameters: "Iterable[nn.Parameter]", learning_rate: float, weight_decay: float
    ) -> "Optimizer":
        """Returns the optimizer, to which every matrix is one of a hidden layer."""
        return self._make(list(parameters), set(), learning_rate, weight_decay)

    def make_for(
        self,
        model: "nn.Module",
        parameters: "Iterable[nn.Parameter]",
        learning_rate: float,
        weight_decay: float,
    ) -> "Optimizer":
        """Returns the optimizer over ``parameters`` of ``model``."""
        from dpft.training.muon_and_adamw import tables_and_heads

        apart = tables_and_heads(model)
        return self._make(list(parameters), apart, learning_rate, weight_decay)

    def check_model(self, model: "nn.Module") -> None:
        """Refuses a model of which no matrix of a hidden layer trains.

        Raises:
            InputError: So it is, as where biases alone train.
        """
        from dpft.training.muon_and_adamw import tables_and_heads

        apart = tables_and_heads(model)
        if not any(p.requires_grad and p.ndim == 2 and p not in apart for p in model.parameters()):
            raise InputError(
                "optimizer=muon needs a matrix of a hidden layer to train, got none by this method;"
                " choose optimizer=adamw."
            )

    def _make(
        self,
        parameters: "list[nn.Parameter]",
        apart: "set[nn.Parameter]",
        learning_rate: float,
        weight_decay: float,
    ) -> "Optimizer":
        from dpft.training.muon_and_adamw import MuonAndAdamW

        matrices = [p for p in parameters if p.ndim == 2 and p not in apart]
        moved = set(matrices)
        return MuonAndAdamW(
            matrices,
            [p for p in parameters if p not in moved],
            lr=learning_rate,
            weight_decay=weight_decay,
            matrix_settings={
                "momentum": self.momentum,
                "nesterov": self.nesterov,
                "ns_steps": self.newton_schulz_steps,
            },
            other_settings={"betas": (self.beta1, self.beta2), "eps": self.eps},
        )
