"""Compacter: adapters of hypercomplex layers (Mahabadi et al. 2021, arXiv 2106.04647).

A weight is ``W = sum_k A_k (x) B_k`` (Kronecker products). All layers of the model share the n
matrices ``A_k`` (n, n), and ``B_k = s_k t_k^T`` has rank one. ``W`` is never formed. On
activations, the sum is three small dense products. The clipper therefore sees only dense layers and
a look-up, and it has an exact rule for each of them.

With ``n=4`` and frozen norms, the default bottleneck gives the 0.055 % of RoBERTa-base in Bu et al.
2022, table 4. That paper does not state its bottleneck. The default gives 0.049 % for
RoBERTa-large, but the table states 0.053 %.
"""

from typing import TYPE_CHECKING

from dpft.errors import InputError
from dpft.methods.adapter import AdapterMaker, BottleneckMethod
from dpft.methods.base import METHODS
from dpft.strict_model import AtLeastOne

if TYPE_CHECKING:
    import torch

BOTTLENECK_SHARE = 0.24
"""Width of the bottleneck divided by the hidden size, if no bottleneck is given."""


@METHODS.register("compacter")
class Compacter(BottleneckMethod):
    """Training of two compact adapters in every block."""

    bottleneck: AtLeastOne | None = None
    """Width in the middle of an adapter; null takes 24 % of the hidden size, such as 184 for 768.
    This gives the share of RoBERTa-base in Bu et al. 2022, Table 4."""
    n: AtLeastOne = 4
    """Number of Kronecker products whose sum is a weight."""

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
        """Reject a width that the adapters do not fit or that n does not divide.

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
        """Return a function that creates adapters on a device with shared matrices ``A_k``."""
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
