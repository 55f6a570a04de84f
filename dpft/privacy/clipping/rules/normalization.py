"""LayerNorm, RMSNorm and GroupNorm: weights are small, so each example's gradient is formed.

The relatives of RMSNorm that Hugging Face models define for themselves (Llama's, Gemma's with
1 + weight, T5's) differ in the order of casts and products; they run their own forward
(``mapping``).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpft.privacy.clipping.recorder import Recorder, Tap
from dpft.privacy.clipping.rules.linear import for_normalization, sum_dtype
from dpft.privacy.clipping.rules.whole_batch import expanded
from dpft.privacy.clipping.uses import GradientUse


def layer_norm_forward(layer: nn.LayerNorm, recorder: Recorder) -> Callable[[Tensor], Tensor]:
    """Returns ``y = weight * normalized(x) + bias`` over the last dimensions, recording uses."""
    width = len(layer.normalized_shape)

    def record(normalized: Tensor | None, backprops: Tensor) -> None:
        # Everything between batch and the normalized dimensions is summed over.
        middle = tuple(range(1, backprops.dim() - width))
        if layer.weight.requires_grad and normalized is not None:
            products = backprops * normalized
            recorder.record(layer, "weight", GradientUse(_summed(products, middle)))
        if layer.bias is not None and layer.bias.requires_grad:
            recorder.record(layer, "bias", GradientUse(_summed(backprops, middle)))

    tap = Tap(recorder, record)

    def forward(inputs: Tensor) -> Tensor:
        if tap.is_used:
            return _tapped(for_normalization(inputs), layer, tap)
        outputs: Tensor = _LayerNorm.apply(
            for_normalization(inputs),
            layer.weight,
            layer.bias,
            layer.normalized_shape,
            layer.eps,
            record,
        )
        return outputs

    return forward


def _tapped(inputs: Tensor, layer: nn.LayerNorm, tap: Tap) -> Tensor:
    """Returns what ``_LayerNorm`` does, in a form that a compiler can follow."""
    weight, bias = (None if p is None else p.detach() for p in (layer.weight, layer.bias))
    outputs, mean, rstd = torch.native_layer_norm(
        inputs, layer.normalized_shape, weight, bias, layer.eps
    )
    trains = layer.weight is not None and layer.weight.requires_grad
    normalized = ((inputs - mean) * rstd).detach() if trains else None
    return tap(outputs, normalized)


def _summed(gradients: Tensor, dimensions: tuple[int, ...]) -> Tensor:
    return gradients.sum(dimensions, dtype=sum_dtype(gradients)) if dimensions else gradients


class _LayerNorm(torch.autograd.Function):
    """LayerNorm whose backward hands out (normalized input, output gradient)."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        shape: tuple[int, ...],
        eps: float,
        record: Callable[[Tensor | None, Tensor], None],
    ) -> Tensor:
        outputs, mean, rstd = torch.native_layer_norm(inputs, shape, weight, bias, eps)
        ctx.shape, ctx.record = shape, record
        ctx.save_for_backward(inputs, weight, bias, mean, rstd)
        return outputs

    @staticmethod
    def backward(ctx: Any, backprops: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, bias, mean, rstd = ctx.saved_tensors
        normalized = (inputs - mean) * rstd if ctx.needs_input_grad[1] else None
        ctx.record(normalized, backprops)
        grad_inputs, _, _ = torch.ops.aten.native_layer_norm_backward(
            backprops, inputs, ctx.shape, mean, rstd, weight, bias, [True, False, False]
        )
        return grad_inputs, None, None, None, None, None


def rms_norm_forward(layer: nn.RMSNorm, recorder: Recorder) -> Callable[[Tensor], Tensor]:
    """Returns ``y = weight * x / rms(x)`` over the last dimensions, recording its uses."""
    width = len(layer.normalized_shape)
    report = partial(recorder.record, layer, "weight")

    def forward(inputs: Tensor) -> Tensor:
        normalized = F.rms_norm(inputs, layer.normalized_shape, None, layer.eps)
        weight = expanded(layer.weight, len(inputs), report)
        middle = [1] * (inputs.dim() - width - 1)
        outputs = normalized * weight.view(len(inputs), *middle, *layer.weight.shape)
        return outputs.to(normalized.dtype)

    return forward


def group_norm_forward(layer: nn.GroupNorm, recorder: Recorder) -> Callable[[Tensor], Tensor]:
    """Returns ``y = weight * normalized(x) + bias`` over channels, recording its uses."""

    def forward(inputs: Tensor) -> Tensor:
        count = len(inputs)
        # Inside a region examples come as (b, 1, channels, …).
        rows = inputs.flatten(0, 1) if recorder.in_region else inputs
        weight, bias = (
            expanded(getattr(layer, attribute), count, partial(recorder.record, layer, attribute))
            .repeat_interleave(len(rows) // count, 0)
            .view(-1)
            for attribute in ("weight", "bias")
        )
        # All rows' channels as one row's: groups stay apart, and each has its own row's weights.
        together = rows.reshape(1, -1, *rows.shape[2:])
        groups = len(rows) * layer.num_groups
        return F.group_norm(together, groups, weight, bias, layer.eps).view(inputs.shape)

    return forward
