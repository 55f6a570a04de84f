"""Compacter: adapters of hypercomplex layers (Mahabadi et al. 2021, arXiv 2106.04647).

A weight is ``W = sum_k A_k (x) B_k`` (Kronecker products), where the n matrices ``A_k`` (n, n) are
shared by all layers of the model and ``B_k = s_k t_k^T`` has rank one. ``W`` is never formed: on
activations the sum is three small dense products, so the clipper sees nothing but dense layers
and a look-up, each of which it has an exact rule for.

The default bottleneck is the one that with ``n=4`` and frozen norms makes the 0.055 % of
RoBERTa-base of Bu et al. 2022, table 4, which does not say what was used there. Of RoBERTa-large
it is 0.049 %, where the table says 0.053 %.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpft.errors import InputError
from dpft.methods.base import METHODS
from dpft.methods.bottleneck import AdapterMaker, BottleneckMethod

RANK_ONE_STD = 0.1
"""Standard deviation of s and t at the start; with A of variance 1/n, entries of W have one of
0.01 (Houlsby's)."""


class PHMLinear(nn.Module):
    """A dense layer with a parameterized hypercomplex weight.

    For x seen as X of shape (n, inputs / n), ``(A_k (x) s_k t_k^T) x`` is ``A_k X t_k s_k^T``.
    """

    def __init__(self, inputs: int, outputs: int, mixers: nn.ModuleList) -> None:
        """Makes a layer.

        Args:
            inputs: Width of the input, a multiple of n.
            outputs: Width of the output, a multiple of n.
            mixers: The n dense layers, each of weight ``A_k``, that all layers share.
        """
        super().__init__()
        self.n = len(mixers)
        device = mixers[0].weight.device
        self.right = nn.Linear(inputs // self.n, self.n, bias=False, device=device)
        self.mixers = mixers
        self.left = nn.Linear(self.n, outputs // self.n, bias=False, device=device)
        # A look-up in place of a bare parameter: the clipper has a rule for it, and needs not run
        # the layer once per example.
        self.bias = nn.Embedding(self.n, outputs // self.n, device=device)
        for layer in (self.right, self.left):
            nn.init.normal_(layer.weight, std=RANK_ONE_STD)
        nn.init.zeros_(self.bias.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """Returns the layer's output, shape (b, …, outputs), for (b, …, inputs)."""
        projected = self.right(hidden.reshape(*hidden.shape[:-1], self.n, -1))
        mixed = [mix(projected[..., k]) for k, mix in enumerate(self.mixers)]
        outputs: Tensor = self.left(torch.stack(mixed, dim=-1)).flatten(-2)
        return outputs + self._bias_rows(hidden).to(outputs.dtype)

    def _bias_rows(self, hidden: Tensor) -> Tensor:
        """Returns the bias of each example, shape (b, 1, …, outputs)."""
        count, between = len(hidden), [1] * (hidden.dim() - 2)
        numbers = torch.arange(self.n, device=hidden.device).expand(count, self.n)
        rows: Tensor = self.bias(numbers)
        return rows.reshape(count, *between, -1)


class CompactBottleneck(nn.Module):
    """``h + up(gelu(down(h)))`` of hypercomplex layers."""

    def __init__(self, width: int, bottleneck: int, mixers: nn.ModuleList) -> None:
        super().__init__()
        self.down = PHMLinear(width, bottleneck, mixers)
        self.act = nn.GELU()
        self.up = PHMLinear(bottleneck, width, mixers)

    def forward(self, hidden: Tensor) -> Tensor:
        """Returns the adapted hidden states, shape (b, …, width) as given."""
        adapted: Tensor = hidden + self.up(self.act(self.down(hidden)))
        return adapted


BOTTLENECK_SHARE = 0.24
"""Width of the bottleneck over the hidden size, where no bottleneck is given."""


@METHODS.register("compacter")
@dataclass(frozen=True, kw_only=True)
class Compacter(BottleneckMethod):
    """Trains two compact adapters in every block."""

    bottleneck: int | None = None
    """Width in the middle of an adapter; null takes 24 % of the hidden size, 184 for 768, which
    makes the share of RoBERTa-base that Bu et al. 2022, Table 4, state."""
    n: int = 4
    """How many Kronecker products a weight is the sum of."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n < 1:
            raise InputError(f"method.n must be at least 1, got {self.n}; try 4.")
        if self.bottleneck is not None and self.bottleneck % self.n:
            raise InputError(
                f"method.bottleneck must be a multiple of method.n={self.n}, got"
                f" {self.bottleneck}; null takes one that is."
            )

    def check_width(self, width: int) -> None:
        """Refuses a width that n does not divide, as well.

        Raises:
            InputError: The adapters do not fit a projection.
        """
        super().check_width(width)
        if width % self.n:
            raise InputError(
                f"method.n must divide the hidden size {width}, got {self.n}; choose one that does."
            )

    def adapter_maker(self, device: torch.device) -> AdapterMaker:
        """Returns what makes adapters on a device; they share the matrices ``A_k``."""
        layers = [nn.Linear(self.n, self.n, bias=False, device=device) for _ in range(self.n)]
        for layer in layers:
            nn.init.normal_(layer.weight, std=self.n**-0.5)
        mixers = nn.ModuleList(layers)
        return lambda width: CompactBottleneck(width, self._bottleneck(width), mixers)

    def _bottleneck(self, width: int) -> int:
        """Returns the width in the middle, a multiple of ``n``."""
        if self.bottleneck is not None:
            return self.bottleneck
        return max(1, round(BOTTLENECK_SHARE * width) // self.n) * self.n
