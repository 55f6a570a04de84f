"""Dense layers, Hugging Face's transposed ``Conv1D``, and heads that give losses for logits.

A dense layer's backward pass hands out input and output gradient, of which the weight's gradient is
the product, and forms none.

Autocast looks at torch's functions, and does not reach into a ``torch.autograd.Function``'s
backward pass. So the rules cast by hand: products in the autocast dtype, as ``F.linear`` would;
normalization in float32 where autocast does it so. Parameters stay float32 and are cast anew in
the backward pass, which costs less than keeping the copy.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from dpft.head_losses import Chunk, LossHead, Targets, token_losses
from dpft.privacy.clipping.heads import HeadProduct, RecomputedHead, SeenChunks
from dpft.privacy.clipping.recorder import Recorder, Tap
from dpft.privacy.clipping.squares import in_norm_dtype
from dpft.privacy.clipping.uses import GradientUse, OuterProduct


def for_product(inputs: Tensor) -> Tensor:
    """Returns the inputs of a matrix product as autocast would cast them."""
    device = inputs.device.type
    if not torch.is_autocast_enabled(device) or inputs.dtype == torch.float64:
        return inputs
    return inputs.to(torch.get_autocast_dtype(device))


def for_normalization(inputs: Tensor) -> Tensor:
    """Returns the inputs of a normalization as autocast would: float32, but on the CPU as is."""
    device = inputs.device.type
    if device == "cpu" or not torch.is_autocast_enabled(device):
        return inputs
    return inputs.to(torch.promote_types(inputs.dtype, torch.float32))


def sum_dtype(gradients: Tensor) -> torch.dtype:
    """Returns the dtype to add gradients up in, float32 or better."""
    return torch.float64 if gradients.dtype == torch.float64 else torch.float32


def linear_forward(layer: nn.Linear, recorder: Recorder) -> Callable[[Tensor], Tensor]:
    """Returns ``y = x W^T + bias`` for ``W`` of shape (outputs, inputs), recording its uses."""

    def record(inputs: Tensor | None, backprops: Tensor) -> None:
        if layer.weight.requires_grad and inputs is not None:
            use = OuterProduct(as_sequence(backprops), as_sequence(inputs))
            recorder.record(layer, "weight", use)
        _record_bias(layer, backprops, recorder)

    tap = Tap(recorder, record)

    def forward(inputs: Tensor) -> Tensor:
        if tap.is_used:
            return _tapped(inputs, layer, tap)
        return dense(inputs, layer.weight, layer.bias, record)

    return forward


def conv1d_forward(layer: Conv1D, recorder: Recorder) -> Callable[[Tensor], Tensor]:
    """Returns ``y = x W + bias`` for ``W`` of shape (inputs, outputs), recording its uses."""

    def record(inputs: Tensor | None, backprops: Tensor) -> None:
        if layer.weight.requires_grad and inputs is not None:
            use = OuterProduct(as_sequence(inputs), as_sequence(backprops))
            recorder.record(layer, "weight", use)
        _record_bias(layer, backprops, recorder)

    tap = Tap(recorder, record)

    def forward(inputs: Tensor) -> Tensor:
        if tap.is_used:
            return _tapped(inputs, layer, tap, transposed=True)
        return dense(inputs, layer.weight, layer.bias, record, transposed=True)

    return forward


def dense(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    record: Callable[[Tensor | None, Tensor], None],
    *,
    transposed: bool = False,
) -> Tensor:
    """Returns ``x W^T + bias``, or ``x W + bias`` where W is transposed.

    The backward pass forms no gradient of weight and bias, but hands out what they follow from.

    Args:
        inputs: Shape (…, d).
        weight: Of any dtype.
        bias: The same.
        record: Called in the backward pass with the inputs, None for a frozen weight, and with the
            gradient of the outputs.
        transposed: Whether the weight is of shape (inputs, outputs).
    """
    outputs: Tensor = _Dense.apply(for_product(inputs), weight, bias, transposed, record)
    return outputs


def _tapped(
    inputs: Tensor, layer: nn.Linear | Conv1D, tap: Tap, *, transposed: bool = False
) -> Tensor:
    """Returns what ``dense`` does, in a form that a compiler can follow."""
    inputs, weight = for_product(inputs), layer.weight
    kept = inputs.detach() if weight.requires_grad else None
    matrix = weight.detach().to(inputs.dtype)
    bias = None if layer.bias is None else layer.bias.detach().to(inputs.dtype)
    return tap(F.linear(inputs, matrix.t() if transposed else matrix, bias), kept)


def as_sequence(rows: Tensor) -> Tensor:
    """Returns (b, t, d) from (b, …, d): everything between batch and features is a position."""
    return rows.unsqueeze(1) if rows.dim() == 2 else rows.flatten(1, -2)


def _record_bias(layer: nn.Linear | Conv1D, backprops: Tensor, recorder: Recorder) -> None:
    if layer.bias is not None and layer.bias.requires_grad:
        sums = as_sequence(backprops).sum(1, dtype=sum_dtype(backprops))
        recorder.record(layer, "bias", GradientUse(sums))


class _Dense(torch.autograd.Function):
    """A dense layer whose backward hands out (input, output gradient) instead of multiplying."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        transposed: bool,
        record: Callable[[Tensor | None, Tensor], None],
    ) -> Tensor:
        ctx.transposed, ctx.record = transposed, record
        # A frozen weight needs no input: bias-only training keeps no activations here
        # (Bu et al. 2022, section 3).
        ctx.save_for_backward(inputs if ctx.needs_input_grad[1] else None, weight)
        weight = weight.to(inputs.dtype)
        bias = None if bias is None else bias.to(inputs.dtype)
        outputs = F.linear(inputs, weight.t() if transposed else weight, bias)
        # No view of a hidden tensor: a model may go on in place (Longformer's scaling does).
        unaliased: Tensor = torch.ops.aten._unsafe_view(outputs, outputs.shape)
        return unaliased

    @staticmethod
    def backward(ctx: Any, backprops: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        inputs, weight = ctx.saved_tensors
        ctx.record(inputs, backprops)
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        weight = weight.to(backprops.dtype)
        return backprops @ (weight.t() if ctx.transposed else weight), None, None, None, None


def loss_head_forward(layer: LossHead, recorder: Recorder) -> Callable[..., Tensor]:
    """Returns the layer's forward in each of its ways, recording its weight's uses."""
    logits = linear_forward(layer, recorder)

    def forward(
        hidden: Tensor, labels: Tensor | None = None, shares: Tensor | None = None
    ) -> Tensor:
        if layer.passes:
            return hidden
        if labels is None or shares is None:
            return logits(hidden)
        return token_losses(
            hidden, layer.weight, labels, shares, _Recording(layer, recorder, labels.shape)
        )

    return forward


class _Recording:
    """Sees a call's chunks, and records its use when the factors are known."""

    def __init__(self, layer: LossHead, recorder: Recorder, size: torch.Size) -> None:
        self._layer, self._recorder, self._size = layer, recorder, size
        looked_up = recorder.looked_up(layer, "weight") if layer.weight.requires_grad else ()
        self._seen = SeenChunks([ids for ids in looked_up if len(ids) == size[0]])
        self.room = recorder.room

    def see(self, chunk: Chunk, targets: Targets) -> None:
        """Takes what its examples' norms need of a chunk."""
        self._seen.see(chunk, targets, self._size)

    def report(self, hidden: Tensor, targets: Targets, factors: Tensor) -> None:
        """Records the use."""
        product = HeadProduct(self._layer.weight, targets, self._seen)
        use = RecomputedHead(in_norm_dtype(factors), hidden, product)
        self._recorder.record(self._layer, "weight", use)
