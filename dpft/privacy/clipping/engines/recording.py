"""What book-keeping, two-pass and instantiate share: a backward pass that reports uses."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from dpft.privacy.clipping.choices import Tuning
from dpft.privacy.clipping.engines.base import Engine, LossFunction
from dpft.privacy.clipping.engines.patches import Patches, watch_for_unrecorded_gradients
from dpft.privacy.clipping.engines.prover import Prover
from dpft.privacy.clipping.factors import ClippingStyle
from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.uses import Use

Receiver = Callable[[str, Use], None]
"""Takes a parameter's name and one use of it, in the middle of a backward pass."""


class RecordingEngine(Engine):
    """An engine whose layers report each use of their weights as the backward pass meets it."""

    def __init__(
        self,
        model: nn.Module,
        style: ClippingStyle,
        *,
        groups: Mapping[str, int] | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        """Finds a rule for every layer that owns a trainable parameter.

        Raises:
            InputError: A trainable parameter belongs to a layer without a rule.
        """
        super().__init__(model, style, groups=groups, tuning=tuning)
        self.recorder = Recorder(self.trainable)
        self._patches = Patches(model, self.recorder)
        self._prover = Prover(model, self._patches, self.backward, self.tuning.loss_scale)
        self._rows: int | None = None
        self.shared = self.trainable.shared
        """Names of the parameters of several layers, whose uses add up before the norm."""

    def install(self) -> None:
        """Gives each layer its recording forward.

        Raises:
            InputError: A layer's forward is already replaced, by a second clipper or by hand.
        """
        self._patches.install()

    def remove(self) -> None:
        """Takes the recording forwards away; the layers' own reappear."""
        self._patches.remove()

    def compute(self, compute_losses: LossFunction, units: Tensor | None = None) -> Tensor:
        """Returns the losses, once it is proved that their gradients can be told apart.

        Raises:
            RunError: They cannot.
        """
        self._rows = None if units is None else len(units)
        return self._prover.losses(compute_losses, units)

    def backward(
        self,
        losses: Tensor,
        receive: Receiver,
        *,
        retain_graph: bool = False,
        rows: int | None = None,
    ) -> None:
        """Runs a backward pass of the scaled losses, handing every use to ``receive``.

        Args:
            losses: One of each row, or of each unit.
            receive: What takes each use.
            retain_graph: Whether another pass over the graph follows.
            rows: Rows that each use must have; None takes those of the batch that was computed.

        Raises:
            RunError: A use does not carry the batch, or a parameter got an ordinary gradient.
        """
        self.recorder.start(rows or self._rows or len(losses))
        self.recorder.receive = receive
        total = losses.sum() * self.tuning.loss_scale
        try:
            with watch_for_unrecorded_gradients(self.trainable.now()):
                torch.autograd.backward(total, retain_graph=retain_graph)
        finally:
            self.recorder.receive = self.recorder.keep
            self.recorder.stop()
