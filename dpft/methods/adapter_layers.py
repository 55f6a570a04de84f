"""Modules of adapters: the wrapped projection, and the adapters themselves.

They stand apart from the methods, ``adapter`` and ``compacter``, because a method is a part of the
configuration, which is read before torch is imported.
"""

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

INITIAL_STD = 1e-2
"""Houlsby et al. 2019, section 3.6: a normal truncated at two standard deviations; the adapter is
then nearly the identity, and every weight has a gradient from the first step."""
RANK_ONE_STD = 0.1
"""Standard deviation of s and t at the start; with A of variance 1/n, entries of W have one of
0.01 (Houlsby's)."""

Projection = nn.Linear | Conv1D


class AdaptedProjection(nn.Module):
    """A projection, and an adapter on its output.

    The projection is called ``base_layer``, as in peft, so that a parameter's name still leads
    to its name in the model itself (``base.original_name``).
    """

    def __init__(self, base_layer: Projection, adapter: nn.Module) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.adapter = adapter

    @property
    def weight(self) -> Tensor:
        """The projection's weight: T5 asks for its dtype."""
        weight: Tensor = self.base_layer.weight
        return weight

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns the adapted projection of (…, inputs), shape (…, width)."""
        outputs: Tensor = self.adapter(self.base_layer(inputs))
        return outputs


def output_width(layer: Projection) -> int:
    """Returns the width of a projection's output."""
    return int(layer.out_features if isinstance(layer, nn.Linear) else layer.nf)


class Bottleneck(nn.Module):
    """``h + up(gelu(down(h)))``."""

    def __init__(self, width: int, bottleneck: int, device: torch.device) -> None:
        super().__init__()
        self.down = nn.Linear(width, bottleneck, device=device)
        self.act = nn.GELU()
        self.up = nn.Linear(bottleneck, width, device=device)
        for layer in (self.down, self.up):
            nn.init.trunc_normal_(
                layer.weight, std=INITIAL_STD, a=-2 * INITIAL_STD, b=2 * INITIAL_STD
            )
            nn.init.zeros_(layer.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Returns the adapted hidden states, shape (…, width) as given."""
        adapted: Tensor = hidden + self.up(self.act(self.down(hidden)))
        return adapted


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
