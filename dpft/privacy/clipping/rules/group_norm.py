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
        # Inside a region examples come as (b, 1, channels, …).
        rows = inputs.flatten(0, 1) if recorder.in_region else inputs
        normalized = F.group_norm(rows, layer.num_groups, eps=layer.eps)
        per_example = len(rows) // len(inputs)
        weight, bias = (
            expanded(
                getattr(layer, attribute), len(inputs), partial(recorder.record, layer, attribute)
            )
            .repeat_interleave(per_example, 0)
            .view(*rows.shape[:2], *[1] * (rows.dim() - 2))
            for attribute in ("weight", "bias")
        )
        return (normalized * weight + bias).to(normalized.dtype).view(inputs.shape)

    return forward
