"""Vocabulary heads that give losses in place of logits (``dpft.fused_head``)."""

from collections.abc import Callable

from torch import Tensor

from dpft.fused_head import LossHead
from dpft.head_losses import token_losses
from dpft.privacy.clipping.head_use import SeenSquares, reported_use
from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.rules.linear import linear_forward
from dpft.vocabulary_chunks import Chunk, Targets


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
        return token_losses(hidden, layer.weight, labels, shares, _Recording(layer, recorder))

    return forward


class _Recording:
    """Takes the squares of a call's chunks, and records its use when the factors are known."""

    def __init__(self, layer: LossHead, recorder: Recorder) -> None:
        self._layer, self._recorder = layer, recorder
        self._seen, self.room = SeenSquares(), recorder.room

    def see(self, chunk: Chunk, targets: Targets) -> None:
        """Takes the squared norms of a chunk's examples."""
        self._seen.see(chunk, targets.counts)

    def report(self, hidden: Tensor, targets: Targets, factors: Tensor) -> None:
        """Records the use."""
        use = reported_use(self._seen, hidden, self._layer.weight, targets, factors)
        self._recorder.record(self._layer, "weight", use)
