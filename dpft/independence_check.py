"""Reject models with layers that mix the examples of a batch, such as batch normalization.

A per-example gradient exists only where row i of the output depends on row i of the input. The
clipper bounds that gradient; what flows between rows it cannot see (docs/dev/design.md, rule 3).
Models without batch normalization may have convolutions whose filters are standardized before use
(Qiao et al. 2019, arXiv 1903.10520); models and the clipper share that layer here.
"""

import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from dpft.errors import InputError

_ROUTING = re.compile("Router|Experts|TopKGating")
"""Class names of the expert layers in transformers: TopKRouter, Top1Router, Experts, ….

transformers has no common base class for them; a router's balancing loss is a mean over the
batch's tokens, and one with a capacity drops tokens by what the other examples sent."""


LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}
"""Kinds of rotary position embedding in transformers that look at the largest position of the
whole batch: one long example would change what every other one computes."""
FIXED_ROPE = "default"
"""The kind whose frequencies transformers does not compute again in a forward pass."""


def check_model(model: nn.Module, *, as_it_trains: bool = False) -> None:
    """Pass a model whose examples do not mix.

    Args:
        model: The whole model, with what a method added.
        as_it_trains: Whether to look at it in training mode, whatever mode it is in.

    Raises:
        InputError: A layer mixes examples; names the first such module and the reason.
    """
    for name, module in model.named_modules():
        reason = _mixing_reason(module, training=module.training or as_it_trains)
        if reason is not None:
            raise InputError(
                f"The model's module {name or 'at the root'} ({type(module).__name__}) {reason},"
                f" so no example has its own gradient to clip. {_advice(module)}",
                key="model",
                value=name,
            )


def _advice(module: nn.Module) -> str:
    if isinstance(module, _BatchNorm):
        replacement = "`dpft.models.batch_norm.replace_batch_norm(model)`"
        return f"Choose a model without it, or replace it with {replacement}."
    return "Choose a model without it."


def _mixing_reason(module: nn.Module, *, training: bool) -> str | None:
    """Return why the module mixes the examples of a batch, or None if it does not.

    In evaluation mode a batch norm normalizes by the statistics that it holds.
    """
    if isinstance(module, _BatchNorm) and (training or module.running_mean is None):
        return "normalizes over the batch"
    if isinstance(module, _InstanceNorm) and module.track_running_stats and training:
        return "keeps running statistics of the batch"
    if _rope_types(module) & LENGTH_DEPENDENT_ROPE:
        return "scales its rotary positions by the longest example of the batch"
    if _ROUTING.search(type(module).__name__):
        return "routes tokens to experts depending on the whole batch"
    return None


def fix_rotary_scale(model: nn.Module) -> None:
    """Give rotary positions the scale of short texts, whatever the longest example of a batch is.

    transformers gives every text this scale that has no more tokens than
    ``dpft.models.architecture.max_positions``, and dpft reads no longer texts.
    """
    for module in model.modules():
        if not _rope_types(module) & LENGTH_DEPENDENT_ROPE:
            continue
        kinds: Any = module.rope_type
        if isinstance(kinds, str):
            module.rope_type = FIXED_ROPE  # type: ignore[assignment]
        else:
            fixed = {
                layer: FIXED_ROPE for layer, kind in kinds.items() if kind in LENGTH_DEPENDENT_ROPE
            }
            module.rope_type = {**kinds, **fixed}  # type: ignore[assignment]


def _rope_types(module: nn.Module) -> set[str]:
    """Return the kinds of rotary embedding a module holds; one for each layer type, or one."""
    kinds = vars(module).get("rope_type", ())
    if isinstance(kinds, str):
        return {kinds}
    return set(kinds.values()) if isinstance(kinds, dict) else set()


EPSILON = 1e-6
"""Added to a filter's variance."""


class StandardizedConv2d(nn.Conv2d):
    """A Conv2d that convolves with its weight standardized: each filter to mean 0 and variance 1.

    The parameter is the weight before it is standardized, as in an ordinary Conv2d: a checkpoint
    of one is a checkpoint of the other.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of ``input``, shape (b, in_channels, height, width)."""
        outputs: Tensor = self._conv_forward(input, standardized(self.weight), self.bias)
        return outputs


def standardized(weight: Tensor) -> Tensor:
    """Return a weight, shape (filters, ...), each filter shifted and scaled."""
    filters = weight.flatten(1)
    variance, mean = torch.var_mean(filters, 1, correction=0, keepdim=True)
    form: Tensor = (filters - mean) * (variance + EPSILON).rsqrt()
    return form.view_as(weight)


def pulled_back(weight: Tensor, gradients: Tensor) -> Tensor:
    """Return gradients with respect to a weight from those with respect to its standardized form.

    What is standardized does not depend on the input, so each example's gradient goes through the
    same linear map: with w a filter standardized, s its scale and g the gradient of w,
    ``s (g - mean(g) - w mean(g w))``.

    Args:
        weight: Before it is standardized, shape (filters, ...).
        gradients: With respect to ``standardized(weight)``, shape (b, filters, ...).
    """
    filters = weight.detach().flatten(1).to(gradients.dtype)
    scale = (filters.var(1, correction=0, keepdim=True) + EPSILON).rsqrt()
    form = (filters - filters.mean(1, keepdim=True)) * scale
    rows = gradients.flatten(2)
    along = (rows * form).mean(2, keepdim=True)
    return (scale * (rows - rows.mean(2, keepdim=True) - form * along)).view_as(gradients)
