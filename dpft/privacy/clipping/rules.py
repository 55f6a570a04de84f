"""Layer rules, which define what the forward of each kind of layer records.

A rule is a function (layer, site) -> recording forward with the same arithmetic as the layer's own
forward. In the backward pass, the autograd function of the recording forward passes (input, output
gradient) to the recorder instead of computing a gradient for the weight. To add a kind of layer,
write its rule and add it to ``assignment.RULES``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.pytorch_utils import Conv1D

from dpft.errors import InputError
from dpft.privacy.clipping.recorder import HALF, Recorder, UseError


@dataclass(frozen=True)
class Site:
    """Target of the uses that a layer records.

    Attributes:
        recorder: The recorder.
        names: Names in the model of the layer's trainable parameters, by attribute of the layer.
        batch_multiple: For a layer of the kind ``position``: ``Calls.batch_multiple`` of the module
            around the layer; 0 if unknown.
    """

    recorder: Recorder
    names: Mapping[str, str]
    batch_multiple: int = 0

    def outer(self, attribute: str, left: Tensor, right: Tensor) -> None:
        """Record a gradient ``sum_t left_t right_t^T``, if the attribute is trainable."""
        if attribute in self.names:
            self.recorder.outer(self.names[attribute], left, right)

    def formed(self, attribute: str, gradients: Tensor) -> None:
        """Record per-row gradients, if the attribute is trainable."""
        if attribute in self.names:
            self.recorder.formed(self.names[attribute], gradients)


Forward = Callable[..., Any]
Rule = Callable[[Any, Site], Forward]


def as_sequence(values: Tensor) -> Tensor:
    """Return (n, t, d) from (n, ..., d)."""
    return values.unsqueeze(1) if values.dim() == 2 else values.flatten(1, -2)


def summed(values: Tensor, dims: Sequence[int]) -> Tensor:
    """Return the sum over dimensions, in float32 or better."""
    if not dims:
        return values
    return values.sum(tuple(dims), dtype=torch.float32 if values.dtype in HALF else values.dtype)


def for_product(inputs: Tensor, recorder: Recorder) -> Tensor:
    """Return the inputs of a matrix product as autocast casts them.

    Layers that share an input (query, key and value) share its cast and, later, its Gram matrix.
    """
    device = inputs.device.type
    if inputs.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return inputs
    dtype = torch.get_autocast_dtype(device)
    return inputs if inputs.dtype == dtype else recorder.cast(inputs, dtype)


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool, site: Site
    ) -> Tensor:
        weight = weight.to(inputs.dtype)
        ctx.save_for_backward(inputs if "weight" in site.names else None, weight)
        ctx.transposed, ctx.site = transposed, site
        if bias is None:
            return inputs @ (weight if transposed else weight.t())
        rows = inputs.reshape(-1, inputs.shape[-1])
        outputs = torch.addmm(bias.to(inputs.dtype), rows, weight if transposed else weight.t())
        if inputs.dim() == 2:
            return outputs
        # Not a view, because a model may write to its result in place.
        shape = [*inputs.shape[:-1], outputs.shape[1]]
        whole: Tensor = torch.ops.aten._unsafe_view(outputs, shape)
        return whole

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        site: Site = ctx.site
        left = as_sequence(grads)
        if inputs is not None:
            right = as_sequence(inputs)
            site.outer("weight", *((right, left) if ctx.transposed else (left, right)))
        if "bias" in site.names:
            site.formed("bias", summed(left, (1,)))
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        return grads @ (weight.t() if ctx.transposed else weight), None, None, None, None


def dense(layer: nn.Linear | Conv1D, site: Site) -> Forward:
    """Record ``y = x W^T + bias`` of a Linear, or ``y = x W + bias`` of transformers' Conv1D."""
    transposed, recorder = isinstance(layer, Conv1D), site.recorder

    def forward(input: Tensor) -> Tensor:
        inputs = for_product(input, recorder)
        outputs: Tensor = _Dense.apply(inputs, layer.weight, layer.bias, transposed, site)
        return outputs

    return forward


def bias_only(layer: nn.Linear, site: Site) -> Forward:
    """Record the bias of a Linear subclass that has its own forward, such as a quantized layer."""

    def forward(*args: Any, **kwargs: Any) -> Tensor:
        bias = layer._parameters["bias"]
        assert bias is not None
        layer._parameters["bias"] = None
        try:
            outputs: Tensor = type(layer).forward(layer, *args, **kwargs)
        finally:
            layer._parameters["bias"] = bias
        rows = expanded(bias, len(outputs), "bias", site)
        return outputs + rows.view(-1, *[1] * (outputs.dim() - 2), len(bias)).to(outputs.dtype)

    return forward


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, padding: int | None, site: Site) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.padding, ctx.site, ctx.count = padding, site, len(weight)
        return F.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[None, ...]:
        (ids,) = ctx.saved_tensors
        site, count = ctx.site, ctx.count
        if ctx.padding is not None:
            grads = grads.masked_fill((ids == ctx.padding % count).unsqueeze(-1), 0)
        ids = ids.unsqueeze(1) if ids.dim() == 1 else ids.flatten(1)
        site.recorder.lookup(site.names["weight"], ids, as_sequence(grads), count)
        return None, None, None, None


def embedding(layer: nn.Embedding, site: Site) -> Forward:
    """Record the look-up of an Embedding; in a subclass, the look-up inside its own forward."""

    def look_up(
        ids: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor:
        if max_norm is not None or scale_grad_by_freq:
            raise InputError(
                "embeddings with max_norm or scale_grad_by_freq are not supported, because they"
                " make an example's gradient depend on the other examples of its batch. Set"
                " max_norm=None and scale_grad_by_freq=False.",
                key="model",
            )
        recorder = site.recorder
        if site.batch_multiple and ids.dim() == 1:
            ids = ids.unsqueeze(0)
        if ids.dim() == 2 and len(ids) == 1 and not recorder.inside_map:
            # One row of positions for the whole batch becomes one row for each example.
            ids = ids.expand(recorder.rows * (site.batch_multiple or 1), -1)
        outputs: Tensor = _Embedding.apply(ids, layer.weight, padding_idx, site)
        return outputs

    if type(layer).forward is nn.Embedding.forward:
        return lambda input: look_up(
            input,
            layer.weight,
            layer.padding_idx,
            layer.max_norm,
            scale_grad_by_freq=layer.scale_grad_by_freq,
        )

    def forward(*args: Any, **kwargs: Any) -> Any:
        with _EmbeddingIntercept(layer.weight, look_up):
            return type(layer).forward(layer, *args, **kwargs)

    return forward


class _EmbeddingIntercept(TorchFunctionMode):
    """Mode that replaces ``F.embedding`` for one weight."""

    def __init__(self, weight: Tensor, look_up: Forward) -> None:
        super().__init__()
        self._weight, self._look_up = weight, look_up

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.embedding:
            weight = args[1] if len(args) > 1 else kwargs.get("weight")
            if weight is self._weight:
                return self._look_up(*args, **kwargs)
        return func(*args, **kwargs)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        shape: Sequence[int],
        eps: float,
        site: Site,
    ) -> Tensor:
        outputs, mean, rstd = torch.native_layer_norm(inputs, shape, weight, bias, eps)
        ctx.save_for_backward(inputs, weight, bias, mean, rstd)
        ctx.shape, ctx.eps, ctx.site = shape, eps, site
        return outputs

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, bias, mean, rstd = ctx.saved_tensors
        middle = range(1, grads.dim() - len(ctx.shape))
        if "weight" in ctx.site.names:
            wide = inputs.float() if inputs.dtype in HALF else inputs
            normalized = F.layer_norm(wide, ctx.shape, None, None, ctx.eps)
            ctx.site.formed("weight", summed(grads * normalized, middle))
        if "bias" in ctx.site.names:
            ctx.site.formed("bias", summed(grads, middle))
        of_inputs = torch.ops.aten.native_layer_norm_backward(
            grads, inputs, ctx.shape, mean, rstd, weight, bias, [True, False, False]
        )[0]
        return of_inputs, None, None, None, None, None


def layer_norm(layer: nn.LayerNorm, site: Site) -> Forward:
    """Record a LayerNorm, which autocast runs in float32 on accelerators."""

    def forward(input: Tensor) -> Tensor:
        device = input.device.type
        if device != "cpu" and torch.is_autocast_enabled(device):
            input = input.to(torch.promote_types(input.dtype, torch.float32))
        outputs: Tensor = _LayerNorm.apply(
            input, layer.weight, layer.bias, layer.normalized_shape, layer.eps, site
        )
        return outputs

    return forward


def rms_norm(layer: nn.RMSNorm, site: Site) -> Forward:
    """Record torch's RMSNorm."""

    def forward(input: Tensor) -> Tensor:
        normalized = F.rms_norm(input, layer.normalized_shape, None, layer.eps)
        weight = expanded(layer.weight, len(input), "weight", site)
        middle = [1] * (input.dim() - layer.weight.dim() - 1)
        outputs = normalized * weight.view(len(input), *middle, *layer.weight.shape)
        return outputs.to(normalized.dtype)

    return forward


def group_norm(layer: nn.GroupNorm, site: Site) -> Forward:
    """Record a GroupNorm."""

    def forward(input: Tensor) -> Tensor:
        if site.recorder.inside_map:  # shape (b, 1, c, ...): each row is a batch of one
            rows: Tensor = normalized(input.flatten(0, 1)).unflatten(0, input.shape[:2])
            return rows
        return normalized(input)

    def normalized(input: Tensor) -> Tensor:
        outputs = F.group_norm(input, layer.num_groups, None, None, layer.eps)
        for attribute, apply in (("weight", torch.mul), ("bias", torch.add)):
            vector = layer._parameters[attribute]
            if vector is not None:
                rows = (
                    expanded(vector, len(input), attribute, site)
                    if attribute in site.names
                    else vector.unsqueeze(0)
                )
                outputs = apply(outputs, rows.view(*rows.shape, *[1] * (input.dim() - 2)))
        return outputs

    return forward


class _Expand(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, shape: Sequence[int], attribute: str, site: Site
    ) -> Tensor:
        ctx.attribute, ctx.site = attribute, site
        return weight.expand(shape)

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[None, ...]:
        ctx.site.formed(ctx.attribute, grads)
        return None, None, None, None


def expanded(
    weight: Tensor, rows: int, attribute: str, site: Site, middle: Sequence[int] = ()
) -> Tensor:
    """Return a weight expanded to one copy per row, (rows, *middle, ...), without copying.

    The backward pass records the per-row gradient of the weight. ``middle`` contains only ones.
    """
    weights: Tensor = _Expand.apply(weight, (rows, *middle, *weight.shape), attribute, site)
    return weights


def is_scale(module: nn.Module, width: int) -> bool:
    """Return whether all parameters of a module are vectors of its input's last dimension.

    A module without parameters or with submodules does not qualify.
    """
    held = list(module.parameters())
    return bool(held) and all(p.shape == (width,) for p in held) and not any(module.children())


def scale(module: nn.Module, site: Site) -> Forward:
    """Record a module that only scales or shifts features, such as transformers' RMSNorms.

    The module's own forward runs with each vector replaced by a view of shape (b, 1, ..., d).
    """

    def forward(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        parameters, middle = module._parameters, [1] * (input.dim() - 2)
        held = {attribute: parameters[attribute] for attribute in site.names}
        try:
            for attribute, vector in held.items():
                assert vector is not None
                parameters[attribute] = expanded(vector, len(input), attribute, site, middle)  # type: ignore[assignment]
            return type(module).forward(module, input, *args, **kwargs)
        except (RuntimeError, ValueError) as error:
            message = f"a {type(module).__name__} module does more than scale its input"
            raise UseError(message, list(site.names.values())) from error
        finally:
            parameters.update(held)

    return forward
