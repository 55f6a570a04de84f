"""Convolutions: per-example gradients from the patches that each output position saw.

Where a kernel is small beside the activations it makes, as in a network's first layers, each
example's gradient is formed at once, and inputs and output gradients are let go. Where it is not,
they are what is kept (``patch_use``). The choice reads shapes only.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv1d_input, conv2d_input

from dpft.batch_mixing import StandardizedConv2d, pulled_back, standardized
from dpft.privacy.clipping.choices import instantiated_is_smaller
from dpft.privacy.clipping.patch_use import PatchUse, Window
from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.rules.linear import for_product, sum_dtype
from dpft.privacy.clipping.uses import GradientUse, Use

Convolution = nn.Conv1d | nn.Conv2d


def is_plain(layer: Convolution) -> bool:
    """Whether the layer convolves as its kind does, whatever it pads its input with."""
    return type(layer)._conv_forward in (nn.Conv1d._conv_forward, nn.Conv2d._conv_forward)


def convolution_forward(layer: Convolution, recorder: Recorder) -> Callable[[Tensor], Tensor]:
    """Returns the layer's forward, recording its uses; one-dimensional as two, of height one."""
    spatial = layer.weight.dim() - 2

    def record(inputs: Tensor | None, backprops: Tensor, count: int) -> None:
        if inputs is not None:
            images, gradients = (x.unflatten(0, (count, -1)) for x in (inputs, backprops))
            window = Window(
                weight_shape=tuple(layer.weight.shape),
                stride=layer.stride,
                padding=_padding(layer),
                dilation=layer.dilation,
                groups=layer.groups,
            )
            patches = PatchUse(gradients, images, window)
            use: Use = patches
            if isinstance(layer, StandardizedConv2d):
                use = GradientUse(pulled_back(layer.weight, patches.instantiate()))
            elif instantiated_is_smaller(patches.shape):
                use = GradientUse(patches.instantiate())
            recorder.record(layer, "weight", use)
        if layer.bias is not None and layer.bias.requires_grad:
            sums = backprops.flatten(2).sum(2, dtype=sum_dtype(backprops))
            recorder.record(layer, "bias", GradientUse(sums.unflatten(0, (count, -1)).sum(1)))

    def forward(inputs: Tensor) -> Tensor:
        # Inside a region examples come as (b, 1, channels, …).
        leading = inputs.shape[: -1 - spatial]
        flat = _padded(layer, for_product(inputs.flatten(0, -2 - spatial)))
        outputs = _Convolution.apply(flat, layer.weight, layer.bias, layer, leading[0], record)
        unflattened: Tensor = outputs.unflatten(0, leading)
        return unflattened

    return forward


def _pads_its_input(layer: Convolution) -> bool:
    """Whether padding is a step before the convolution: of other than zeros, or given by name."""
    return layer.padding_mode != "zeros" or isinstance(layer.padding, str)


def _padded(layer: Convolution, inputs: Tensor) -> Tensor:
    """Returns the inputs with the padding that the convolution itself will not add."""
    padding = layer._reversed_padding_repeated_twice
    if not (_pads_its_input(layer) and any(padding)):
        return inputs
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(inputs, padding, mode=mode)


def _padding(layer: Convolution) -> Any:
    """Returns the zeros that the convolution adds on both sides of each spatial dimension."""
    return (0,) * (layer.weight.dim() - 2) if _pads_its_input(layer) else layer.padding


class _Convolution(torch.autograd.Function):
    """A convolution whose backward hands out (inputs, output gradient)."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        layer: Convolution,
        count: int,
        record: Callable[[Tensor | None, Tensor, int], None],
    ) -> Tensor:
        ctx.layer, ctx.count, ctx.record = layer, count, record
        ctx.shape = inputs.shape
        used = weight.detach()
        if isinstance(layer, StandardizedConv2d):
            used = standardized(used)
        # A weight is saved as itself: what is saved for a backward pass may be offloaded or sharded
        kept = used if isinstance(layer, StandardizedConv2d) else weight
        ctx.save_for_backward(inputs if ctx.needs_input_grad[1] else None, kept)
        convolve = F.conv1d if inputs.dim() == 3 else F.conv2d
        bias = None if bias is None else bias.to(inputs.dtype)
        return convolve(
            inputs,
            used.to(inputs.dtype),
            bias,
            layer.stride,
            _padding(layer),
            layer.dilation,
            layer.groups,
        )

    @staticmethod
    def backward(ctx: Any, backprops: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        ctx.record(inputs, backprops, ctx.count)
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None, None
        of_input = conv1d_input if weight.dim() == 3 else conv2d_input
        layer = ctx.layer
        gradient = of_input(
            ctx.shape,
            weight.to(backprops.dtype),
            backprops,
            layer.stride,
            _padding(layer),
            layer.dilation,
            layer.groups,
        )
        return gradient, None, None, None, None, None
