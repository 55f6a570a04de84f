"""Compacter: adapters of hypercomplex layers (Mahabadi et al. 2021, arXiv 2106.04647).

A weight is ``W = sum_k A_k (x) B_k`` (Kronecker products), where the n matrices ``A_k`` (n, n) are
shared by all layers of the model and ``B_k = s_k t_k^T`` has rank one. ``W`` is never formed: on
activations the sum is three small dense products, so the clipper sees nothing but dense layers
and a look-up, each of which it has an exact rule for.

The default bottleneck is the one that with ``n=4`` and frozen norms makes the 0.055 % of
RoBERTa-base of Bu et al. 2022, table 4, which does not say what was used there. Of RoBERTa-large
it is 0.049 %, where the table says 0.053 %.
"""

from typing import TYPE_CHECKING

from dpft.errors import InputError
from dpft.methods.adapter import AdapterMaker, BottleneckMethod
from dpft.methods.base import METHODS
from dpft.strict_model import AtLeastOne

if TYPE_CHECKING:
    import torch

BOTTLENECK_SHARE = 0.24
"""Width of the bottleneck over the hidden size, where no bottleneck is given."""


@METHODS.register("compacter")
class Compacter(BottleneckMethod):
    """Trains two compact adapters in every block."""

    bottleneck: AtLeastOne | None = None
    """Width in the middle of an adapter; null takes 24 % of the hidden size, 184 for 768, which
    makes the share of RoBERTa-base that Bu et al. 2022, Table 4, state."""
    n: AtLeastOne = 4
    """How many Kronecker products a weight is the sum of."""

    def _check_fields(self) -> None:
        if self.bottleneck is not None and self.bottleneck % self.n:
            raise InputError(
                f"method.bottleneck must be a multiple of method.n={self.n}, got"
                f" {self.bottleneck}.",
                key="method.bottleneck",
                value=self.bottleneck,
                hint="method.bottleneck=null",
            )

    def check_width(self, width: int) -> None:
        """Reject a width that n does not divide, as well.

        Raises:
            InputError: The adapters do not fit a projection.
        """
        super().check_width(width)
        if width % self.n:
            raise InputError(
                f"method.n must divide the hidden size {width}, got {self.n}.",
                key="method.n",
                value=self.n,
            )

    def adapter_maker(self, device: "torch.device") -> "AdapterMaker":
        """Return a maker of adapters on a device, which share the matrices ``A_k``."""
        from torch import nn

        from dpft.methods.layers import Bottleneck, PHMLinear

        layers = [nn.Linear(self.n, self.n, bias=False, device=device) for _ in range(self.n)]
        for layer in layers:
            nn.init.normal_(layer.weight, std=self.n**-0.5)
        mixers = nn.ModuleList(layers)

        def make(width: int) -> nn.Module:
            middle = self.bottleneck
            if middle is None:
                middle = max(1, round(BOTTLENECK_SHARE * width) // self.n) * self.n
            return Bottleneck(PHMLinear(width, middle, mixers), PHMLinear(middle, width, mixers))

        return make
