"""Rejection of models with layers that mix the examples of a batch, such as batch normalization.

A per-example gradient exists only if row i of the output depends only on row i of the input. The
clipper bounds that gradient, but cannot detect information that flows between rows
(docs/dev/design.md, rule 3). Some models replace batch normalization by convolutions that
standardize their filters before use (Qiao et al. 2019, arXiv 1903.10520). This module implements
that convolution for the models and for the clipper.
"""

import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from dpft.errors import InputError

_ROUTING = re.compile("Router|Experts|TopKGating")
"""Class names of the expert layers in Transformers: TopKRouter, Top1Router, Experts, ….

Transformers has no common base class for these layers. The balancing loss of a router is a mean
over the tokens of the batch. A router with a capacity drops tokens depending on the other examples.
"""


LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}
"""Kinds of rotary position embeddings in Transformers that depend on the largest position in the
batch. With these kinds, one long example would change the computation for all others."""
FIXED_ROPE = "default"
"""The kind with frequencies that Transformers does not recompute in a forward pass."""


def check_model(model: nn.Module, *, as_it_trains: bool = False) -> None:
    """Accept a model only if its examples do not mix.

    Args:
        model: The whole model, including layers that a method added.
        as_it_trains: Whether to check the model as in training mode, regardless of its mode.

    Raises:
        InputError: A layer mixes examples; the message names the first such module and the reason.
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

    In evaluation mode, batch normalization uses its stored statistics.
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
    """Fix rotary position embeddings at the scale for short texts, regardless of the batch.

    Transformers uses this scale if the longest text of the batch has at most
    ``dpft.models.architecture.max_positions`` tokens. dpft never reads longer texts.
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
    """Return the kinds of rotary embedding of a module: one per layer type, or a single kind."""
    kinds = vars(module).get("rope_type", ())
    if isinstance(kinds, str):
        return {kinds}
    return set(kinds.values()) if isinstance(kinds, dict) else set()


EPSILON = 1e-6
"""Constant added to the variance of a filter."""


class StandardizedConv2d(nn.Conv2d):
    """A Conv2d with standardized weights: each filter has mean 0 and variance 1.

    The parameter is the weight before standardization, as in an ordinary Conv2d. Checkpoints of
    both layers are therefore interchangeable.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of ``input``, shape (b, in_channels, height, width)."""
        outputs: Tensor = self._conv_forward(input, standardized(self.weight), self.bias)
        return outputs


def standardized(weight: Tensor) -> Tensor:
    """Return a weight with each filter shifted and scaled, shape (filters, ...)."""
    filters = weight.flatten(1)
    variance, mean = torch.var_mean(filters, 1, correction=0, keepdim=True)
    form: Tensor = (filters - mean) * (variance + EPSILON).rsqrt()
    return form.view_as(weight)


def pulled_back(weight: Tensor, gradients: Tensor) -> Tensor:
    """Convert gradients of a standardized weight to gradients of the weight before standardization.

    Standardization does not depend on the input, so each example's gradient passes through the same
    linear map. Let w be a standardized filter, s its scale and g the gradient of w. The result is
    ``s (g - mean(g) - w mean(g w))``.

    Args:
        weight: Weight before standardization, shape (filters, ...).
        gradients: Gradients with respect to ``standardized(weight)``, shape (b, filters, ...).
    """
    filters = weight.detach().flatten(1).to(gradients.dtype)
    scale = (filters.var(1, correction=0, keepdim=True) + EPSILON).rsqrt()
    form = (filters - filters.mean(1, keepdim=True)) * scale
    rows = gradients.flatten(2)
    along = (rows * form).mean(2, keepdim=True)
    return (scale * (rows - rows.mean(2, keepdim=True) - form * along)).view_as(gradients)
