"""Layer rules: each kind of layer's forward, in the same arithmetic, recording its weight's uses.

To add a kind, write its forward and name it in ``LAYER_RULES``.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from transformers.pytorch_utils import Conv1D

from dpft.batch_mixing import StandardizedConv2d
from dpft.head_losses import LossHead
from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.rules.convolution import convolution_forward, is_plain
from dpft.privacy.clipping.rules.embedding import embedding_forward, embedding_subclass_forward
from dpft.privacy.clipping.rules.linear import conv1d_forward, linear_forward, loss_head_forward
from dpft.privacy.clipping.rules.normalization import (
    group_norm_forward,
    layer_norm_forward,
    rms_norm_forward,
)
from dpft.privacy.clipping.rules.whole_batch import on_the_whole_batch

Rule = Callable[[Any, Recorder], Callable[..., Any]]
"""(layer, recorder) -> a forward with the layer's arithmetic that records its weight's uses."""

LAYER_RULES: Mapping[type[nn.Module], Rule] = MappingProxyType(
    {
        nn.Linear: linear_forward,
        LossHead: loss_head_forward,
        Conv1D: conv1d_forward,
        nn.Embedding: embedding_forward,
        nn.LayerNorm: layer_norm_forward,
        nn.RMSNorm: rms_norm_forward,
        nn.GroupNorm: group_norm_forward,
        nn.Conv1d: convolution_forward,
        nn.Conv2d: convolution_forward,
        StandardizedConv2d: convolution_forward,
    }
)


def find_rule(module: nn.Module) -> Rule | None:
    """Returns the rule for a layer, or None.

    A subclass has its parent's rule only while it runs its parent's forward: one that computes
    something else must not be treated as what it inherits from. Of an embedding's subclass the
    look-up is intercepted. A layer with trainable weights that its kind does not have has none.
    """
    own = {name for name, p in module.named_parameters(recurse=False) if p.requires_grad}
    if not own <= {"weight", "bias"} or is_parametrized(module):
        return None
    if isinstance(module, nn.Conv1d | nn.Conv2d) and not is_plain(module):
        return None
    for kind, rule in LAYER_RULES.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return rule
    return embedding_subclass_forward if isinstance(module, nn.Embedding) else None


def intercepted_function(module: nn.Module) -> Callable[..., Any] | None:
    """Returns the function that a layer's rule takes over, or None if it is the whole forward."""
    return F.embedding if find_rule(module) is embedding_subclass_forward else None


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
    if isinstance(layer, LossHead):
        return loss_head_forward(layer, recorder)
    if isinstance(layer, nn.Embedding) and rule is embedding_subclass_forward:
        return embedding_subclass_forward(layer, recorder, broadcast=broadcast)
    return on_the_whole_batch(layer, rule(layer, recorder), recorder, broadcast=broadcast)
