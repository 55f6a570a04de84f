"""Layer rules: each kind of layer's forward, in the same arithmetic, recording its weight's uses.

To add a kind, write its forward and name it in ``LAYER_RULES``.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.grad import conv1d_input, conv2d_input
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import TorchFunctionMode
from transformers.pytorch_utils import Conv1D

from dpft.batch_mixing import StandardizedConv2d, pulled_back, standardized
from dpft.errors import InputError
from dpft.privacy.clipping.choices import instantiated_is_smaller
from dpft.privacy.clipping.patch_use import PatchUse, Window
from dpft.privacy.clipping.recorder import Recorder, expanded, on_the_whole_batch
from dpft.privacy.clipping.uses import GradientUse, OuterProduct, RowsUse, Use


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


def dense_forward(layer: nn.Linear | Conv1D, recorder: Recorder) -> Callable[[Tensor], Tensor]:
    """Returns ``y = x W^T + bias``, or ``y = x W + bias`` of a Conv1D, recording W's uses."""
    transposed = isinstance(layer, Conv1D)

    def record(inputs: Tensor | None, backprops: Tensor) -> None:
        if layer.weight.requires_grad and inputs is not None:
            factors = as_sequence(backprops), as_sequence(inputs)
            use = OuterProduct(*(reversed(factors) if transposed else factors))
            recorder.record(layer, "weight", use)
        _record_bias(layer, backprops, recorder)

    def forward(inputs: Tensor) -> Tensor:
        return dense(inputs, layer.weight, layer.bias, record, transposed=transposed)

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


def embedding_forward(layer: nn.Embedding, recorder: Recorder) -> Callable[[Tensor], Tensor]:
    """Returns the look-up ``y = W[ids]``, recording its uses; ``padding_idx`` gets no gradient.

    Raises:
        InputError: The layer rescales its own weight or its gradient, which mixes examples.
    """
    check_plain(max_norm=layer.max_norm, scale_grad_by_freq=layer.scale_grad_by_freq)
    return look_up(layer, layer.padding_idx, recorder)


def look_up(
    layer: nn.Embedding, padding_idx: int | None, recorder: Recorder
) -> Callable[[Tensor], Tensor]:
    """Returns ``F.embedding`` on a layer's weight, recording its uses."""

    def record(ids: Tensor, backprops: Tensor, rows: int) -> None:
        if padding_idx is not None:
            row = padding_idx % rows
            backprops = backprops.masked_fill((ids == row).unsqueeze(-1), 0)
        recorder.record(layer, "weight", RowsUse(_by_example(ids), as_sequence(backprops), rows))

    def forward(ids: Tensor) -> Tensor:
        rows: Tensor = _Embedding.apply(ids, layer.weight, record)
        return rows

    return forward


def _by_example(ids: Tensor) -> Tensor:
    """Returns ids as (b, s)."""
    return ids.unsqueeze(1) if ids.dim() == 1 else ids.flatten(1)


def check_plain(*, max_norm: float | None, scale_grad_by_freq: bool) -> None:
    """Refuses a look-up that makes one example's gradient depend on the others.

    Raises:
        InputError: It rescales its weight or its gradient.
    """
    if max_norm is not None or scale_grad_by_freq:
        raise InputError(
            "an embedding must have max_norm=None and scale_grad_by_freq=False: both make one "
            "example's gradient depend on the others."
        )


class _Embedding(torch.autograd.Function):
    """A look-up whose backward hands out (ids, output gradient) instead of scattering."""

    @staticmethod
    def forward(
        ctx: Any, ids: Tensor, weight: Tensor, record: Callable[[Tensor, Tensor, int], None]
    ) -> Tensor:
        ctx.record, ctx.rows = record, len(weight)
        ctx.save_for_backward(ids)
        return F.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, backprops: Tensor) -> tuple[None, None, None]:
        (ids,) = ctx.saved_tensors
        ctx.record(ids, backprops, ctx.rows)
        return None, None, None


def embedding_subclass_forward(
    layer: nn.Embedding, recorder: Recorder, *, broadcast: bool = False
) -> Callable[..., Any]:
    """Returns the subclass's forward with its ``F.embedding`` recorded.

    Args:
        layer: The layer.
        recorder: What it reports to.
        broadcast: Whether ids of one row for all examples are expanded to a row for each.
    """

    def embed(
        ids: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor:
        check_plain(max_norm=max_norm, scale_grad_by_freq=scale_grad_by_freq)
        rule = look_up(layer, padding_idx, recorder)
        return on_the_whole_batch(layer, rule, recorder, broadcast=broadcast)(ids)

    def forward(*args: Any, **kwargs: Any) -> Any:
        own = type(layer).forward
        if recorder.looping:
            return own(layer, *args, **kwargs)
        with _Intercept(layer.weight, embed):
            return own(layer, *args, **kwargs)

    return forward


class _Intercept(TorchFunctionMode):
    """Puts another look-up in the place of ``F.embedding`` on one weight."""

    def __init__(self, weight: Tensor, embed: Callable[..., Tensor]) -> None:
        super().__init__()
        self._weight = weight
        self._embed = embed

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        used = args[1] if len(args) > 1 else options.get("weight")
        if func is F.embedding and used is self._weight:
            return self._embed(*args, **options)
        return func(*args, **options)


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

    def forward(inputs: Tensor) -> Tensor:
        inputs, shape, eps = for_normalization(inputs), layer.normalized_shape, layer.eps
        outputs: Tensor = _LayerNorm.apply(inputs, layer.weight, layer.bias, shape, eps, record)
        return outputs

    return forward


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


def scale_forward(layer: nn.Module, recorder: Recorder) -> Callable[[Tensor], Tensor]:
    """Return the layer's own forward over a row of its vectors for each example.

    For layers that only multiply or add their parameters to features, such as transformers' many
    RMSNorms; see `scales_features`.
    """
    own = _OwnForward(layer)

    def forward(inputs: Tensor) -> Tensor:
        rows = {
            f"layer.{name}": _as_rows(
                expanded(vector, len(inputs), partial(recorder.record, layer, name)), inputs.dim()
            )
            for name, vector in layer._parameters.items()
            if vector is not None
        }
        outputs: Tensor = functional_call(own, rows, (inputs,))
        return outputs

    return forward


class _OwnForward(nn.Module):
    """Runs the forward of a layer's class, whatever takes its place in the layer itself."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor) -> Any:
        """Return what the layer's class computes of ``inputs``."""
        return type(self.layer).forward(self.layer, inputs)


def _as_rows(vectors: Tensor, dimensions: int) -> Tensor:
    """Return vectors of shape (b, d) as (b, 1, …, d), with so many dimensions."""
    return vectors.view(len(vectors), *[1] * (dimensions - 2), -1)


_scales: dict[type[nn.Module], bool] = {}
"""Answers of `scales_features`, by class."""


def scales_features(layer: nn.Module) -> bool:
    """Return whether a layer of transformers only multiplies or adds vectors to its features.

    The layer's class is run once on a small batch with different vectors for each example, and
    must give what it gives for each example by itself.
    """
    kind, vectors = type(layer), dict(layer.named_parameters(recurse=False))
    if not kind.__module__.startswith("transformers.") or not vectors:
        return False
    if layer._modules or layer._buffers or any(vector.dim() != 1 for vector in vectors.values()):
        return False
    if len(inspect.signature(kind.forward).parameters) != 2:  # Mamba-2 passes a gate, too
        return False
    if kind not in _scales:
        width = max(map(len, vectors.values()))
        inputs = torch.arange(6.0 * width, dtype=torch.float64).view(2, 3, width).sin()
        rows = {f"layer.{name}": inputs[:, 0] + at for at, name in enumerate(vectors, 2)}
        own = _OwnForward(layer)
        try:
            with torch.no_grad():
                together = functional_call(
                    own, {name: _as_rows(row, 3) for name, row in rows.items()}, (inputs,)
                )
                alone = [
                    functional_call(
                        own, {name: row[at] for name, row in rows.items()}, (inputs[at],)
                    )
                    for at in range(2)
                ]
            _scales[kind] = torch.allclose(together, torch.stack(alone), atol=1e-5)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            _scales[kind] = False  # it takes other arguments or shapes
    return _scales[kind]


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


Convolution = nn.Conv1d | nn.Conv2d


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


Rule = Callable[[Any, Recorder], Callable[..., Any]]
"""(layer, recorder) -> a forward with the layer's arithmetic that records its weight's uses."""

LAYER_RULES: Mapping[type[nn.Module], Rule] = MappingProxyType(
    {
        nn.Linear: dense_forward,
        Conv1D: dense_forward,
        nn.Embedding: embedding_forward,
        nn.LayerNorm: layer_norm_forward,
        nn.RMSNorm: rms_norm_forward,
        nn.GroupNorm: group_norm_forward,
        nn.Conv1d: convolution_forward,
        nn.Conv2d: convolution_forward,
        StandardizedConv2d: convolution_forward,
    }
)
_KINDS = tuple(LAYER_RULES)


def find_rule(module: nn.Module) -> Rule | None:
    """Returns the rule for a layer, or None.

    A subclass has its parent's rule only while it runs its parent's forward: one that computes
    something else must not be treated as what it inherits from. Of an embedding's subclass the
    look-up is intercepted. A layer with trainable weights that its kind does not have has none.
    """
    # Asked of every module of a model: of most of them, the first lines say no.
    if not isinstance(module, _KINDS):
        return scale_forward if scales_features(module) else None
    own = {name for name, p in module.named_parameters(recurse=False) if p.requires_grad}
    if not own <= {"weight", "bias"} or is_parametrized(module):
        return None
    if isinstance(module, nn.Conv1d | nn.Conv2d) and type(module)._conv_forward not in (
        nn.Conv1d._conv_forward,
        nn.Conv2d._conv_forward,
    ):
        return None
    for kind, rule in LAYER_RULES.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return rule
    falcon = sys.modules.get("transformers.models.falcon.modeling_falcon")
    if falcon is not None and type(module).forward is falcon.FalconLinear.forward:
        return dense_forward  # x @ W.T + bias, written out
    return embedding_subclass_forward if isinstance(module, nn.Embedding) else None


def intercepted_function(module: nn.Module) -> Callable[..., Any] | None:
    """Returns the function that a layer's rule takes over, or None if it is the whole forward."""
    is_one = isinstance(module, nn.Embedding) and find_rule(module) is embedding_subclass_forward
    return F.embedding if is_one else None


def recording_forward(
    layer: nn.Module, recorder: Recorder, *, broadcast: bool = False
) -> Callable[..., Any]:
    """Returns the recording forward of a layer that has a rule, inside regions and outside.

    Args:
        layer: The layer.
        recorder: What it reports to.
        broadcast: Whether its input, one row for all examples, is expanded to a row for each.
    """
    rule = find_rule(layer)
    if rule is None:
        raise ValueError(f"there is no rule for {type(layer).__name__}")
    if isinstance(layer, nn.Embedding) and rule is embedding_subclass_forward:
        return embedding_subclass_forward(layer, recorder, broadcast=broadcast)
    return on_the_whole_batch(layer, rule(layer, recorder), recorder, broadcast=broadcast)
