"""Layer rules of convolutions: a convolution is a matrix product with patches of its input.

The gradient of a weight is the sum over output positions of output gradient times patch, so ghost
norms apply (Bu et al. 2022, arXiv 2205.10683). Patches are formed only in the backward pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpft.independence_check import StandardizedConv2d, pulled_back, standardized
from dpft.privacy.clipping.recorder import HALF
from dpft.privacy.clipping.rules import Forward, Rule, Site, for_product, summed

Convolution = nn.Conv1d | nn.Conv2d


@dataclass(frozen=True)
class Geometry:
    """Stride, padding, dilation and groups of a convolution."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def patches(self, inputs: Tensor, kernel: Sequence[int]) -> Tensor:
        """Return the input patch of each output position, shape (n, t, groups, patch size)."""
        kernel, dilation, padding, stride = (
            tuple(kernel), self.dilation, self.padding, self.stride,
        )  # fmt: skip
        if inputs.dim() == 3:  # F.unfold needs two spatial dimensions
            inputs, kernel = inputs.unsqueeze(2), (1, *kernel)
            dilation, padding, stride = (1, *dilation), (0, *padding), (1, *stride)
        columns = F.unfold(inputs, kernel, dilation, padding, stride)
        patches: Tensor = columns.unflatten(1, (self.groups, -1)).permute(0, 3, 1, 2)
        return patches


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
        site: Site,
        own_weight: Tensor | None,
    ) -> Tensor:
        weight = weight.to(inputs.dtype)
        ctx.save_for_backward(inputs, weight, own_weight)
        ctx.geometry, ctx.site = geometry, site
        g = geometry
        return torch.convolution(
            inputs, weight, None if bias is None else bias.to(inputs.dtype),
            g.stride, g.padding, g.dilation, False, (0,) * len(g.stride), g.groups,
        )  # fmt: skip

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, own_weight = ctx.saved_tensors
        g: Geometry = ctx.geometry
        site: Site = ctx.site
        if "weight" in site.names:
            patches = g.patches(inputs, weight.shape[2:])
            rows = grads.flatten(2).unflatten(1, (g.groups, -1))  # (n, groups, outputs, t)
            if g.groups == 1 and own_weight is None:
                site.outer("weight", rows[:, 0].mT, patches[:, :, 0])
            else:
                if grads.dtype in HALF:
                    rows, patches = rows.float(), patches.float()
                gradients = torch.einsum("ngot,ntgd->ngod", rows, patches)
                gradients = gradients.reshape(len(grads), *weight.shape)
                if own_weight is not None:
                    gradients = pulled_back(own_weight, gradients)
                site.formed("weight", gradients)
        if "bias" in site.names:
            site.formed("bias", summed(grads.flatten(2), (2,)))
        of_inputs = None
        if ctx.needs_input_grad[0]:
            of_inputs = torch.ops.aten.convolution_backward(
                grads, inputs, weight, None, g.stride, g.padding, g.dilation, False,
                (0,) * len(g.stride), g.groups, (True, False, False),
            )[0]  # fmt: skip
        return of_inputs, None, None, None, None, None


def convolution(layer: Convolution, site: Site) -> Forward:
    """Record a Conv1d or Conv2d, with any kind of padding, or a StandardizedConv2d."""
    spatial = layer.weight.dim() - 2
    pads_input = layer.padding_mode != "zeros" or isinstance(layer.padding, str)
    padding = (0,) * spatial if pads_input else tuple(map(int, layer.padding))
    geometry = Geometry(layer.stride, padding, layer.dilation, layer.groups)
    is_standardized = isinstance(layer, StandardizedConv2d)

    def forward(input: Tensor) -> Tensor:
        leading = input.shape[: -1 - spatial]
        inputs = for_product(input.flatten(0, -2 - spatial), site.recorder)
        if pads_input and any(layer._reversed_padding_repeated_twice):
            mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
            inputs = F.pad(inputs, layer._reversed_padding_repeated_twice, mode=mode)
        weight, own_weight = layer.weight, None
        if is_standardized:
            weight, own_weight = standardized(weight), weight
        outputs: Tensor = _Convolution.apply(inputs, weight, layer.bias, geometry, site, own_weight)
        return outputs if len(leading) == 1 else outputs.unflatten(0, leading)

    return forward


CONVOLUTION_RULES: Mapping[type[nn.Module], Rule] = MappingProxyType(
    {nn.Conv1d: convolution, nn.Conv2d: convolution, StandardizedConv2d: convolution}
)
