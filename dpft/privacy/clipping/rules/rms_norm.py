"""RMSNorm: its weight is small, so each example gets a copy of its own.

The relatives that Hugging Face models define for themselves (Llama's, Gemma's with 1 + weight,
T5's) differ in the order of casts and products; they run their own forward (``mapping``).
"""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.rules.expansion import expanded


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
