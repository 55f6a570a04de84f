"""Layer rules: one file per kind of layer, each a forward that reports its weight's uses.

To add a kind, add a module here and name it in ``LAYER_RULES``.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.rules.embedding import embedding_forward
from dpft.privacy.clipping.rules.layer_norm import layer_norm_forward
from dpft.privacy.clipping.rules.linear import conv1d_forward, linear_forward

Rule = Callable[[Any, Recorder], Callable[..., Any]]
"""(layer, recorder) -> a forward with the layer's arithmetic that records its weight's uses."""

LAYER_RULES: Mapping[type[nn.Module], Rule] = MappingProxyType(
    {
        nn.Linear: linear_forward,
        Conv1D: conv1d_forward,
        nn.Embedding: embedding_forward,
        nn.LayerNorm: layer_norm_forward,
    }
)


def find_rule(module: nn.Module) -> Rule | None:
    """Returns the rule for a layer, or None.

    A subclass has its parent's rule only while it runs its parent's forward: one that computes
    something else must not be treated as what it inherits from.
    """
    for kind, rule in LAYER_RULES.items():
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return rule
    return None
