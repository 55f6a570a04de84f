"""Vocabulary heads that give losses in place of logits (``dpft.head_losses``)."""

from collections.abc import Callable

import torch
from torch import Tensor

from dpft.head_losses import Chunk, LossHead, Targets, token_losses
from dpft.privacy.clipping.head_use import HeadProduct, HeadUse, SeenChunks
from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.rules.linear import linear_forward
from dpft.privacy.clipping.squares import in_norm_dtype


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
        use = HeadUse(in_norm_dtype(factors), hidden, product)
        self._recorder.record(self._layer, "weight", use)
