"""GroupNorm: weight and bias are small, so each example gets copies of its own."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.rules.expansion import expanded


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
