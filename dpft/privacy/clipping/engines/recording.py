"""What book-keeping, two-pass and instantiate share: a backward pass that reports uses."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from dpft.privacy.clipping.choices import Tuning
from dpft.privacy.clipping.engines.base import ClipDecision, Engine, LossFunction
from dpft.privacy.clipping.engines.norm_collector import CollectedNorms
from dpft.privacy.clipping.engines.patches import Patches, watch_for_unrecorded_gradients
from dpft.privacy.clipping.engines.prover import Prover
from dpft.privacy.clipping.engines.rows import Rows
from dpft.privacy.clipping.factors import ClippingStyle
from dpft.privacy.clipping.norms import CarefulSquares
from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.small_gradients import GradientMatrix
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
        self._patches = Patches(model, self.recorder, self.tuning.compilation)
        self._prover = Prover(model, self._patches, self.backward, self.tuning)
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

    def decide(
        self,
        collected: CollectedNorms,
        rows: Rows,
        look_again: Callable[[set[str]], Mapping[str, CarefulSquares]],
    ) -> ClipDecision:
        """Returns what the norms of a batch decide.

        Args:
            collected: The norms at a glance.
            rows: The batch's rows.
            look_again: Takes the norms of some parameters with care, which is rare.
        """
        count = self.style.groups
        doubt = collected.doubt(rows.finite)
        decision = self.decide_clipping(collected.squares(count), rows.finite, doubt)
        if not decision.is_doubted:
            return decision
        doubted = collected.doubted_rows(rows.finite)
        careful = look_again({name for row in doubted for name in collected.names[row]})
        squares = {name: squares.values for name, squares in careful.items()}
        values = collected.with_squares(doubted, squares).squares(count)
        formed = {n: squares.formed for n, squares in careful.items() if squares.formed is not None}
        return replace(self.decide_clipping(values, rows.finite), formed=formed)

    def add_weighted_sums(
        self, uses: dict[str, list[Use]], rows: Rows, decision: ClipDecision
    ) -> None:
        """Adds the weighted sums of all uses to the gradients; each is freed once contracted."""
        parameters = self.trainable.now()
        while uses:
            name, kept = uses.popitem()
            part = rows.weighted_sum(name, kept, decision, self.groups[name])
            self._add(parameters, name, part)

    def add_small_gradients(
        self, matrices: Iterable[GradientMatrix], decision: ClipDecision
    ) -> None:
        """Adds the weighted sums of small gradients, of many parameters at a time."""
        parameters = self.trainable.now()
        finite = None if decision.everyone_is_finite else decision.finite
        for matrix in matrices:
            factors = decision.factors_of(matrix.group, matrix.values.dtype)
            for name, part in matrix.weighted_sums(factors, finite).items():
                self._add(parameters, name, part)

    def _add(self, parameters: Mapping[str, nn.Parameter], name: str, part: Tensor) -> None:
        parameter = parameters[name]
        parameter.grad = self.sums.add(name, parameter.grad, part.to(parameter.dtype))

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
        with torch.enable_grad():
            total = losses.sum() * self.tuning.scale
        try:
            with watch_for_unrecorded_gradients(self.trainable.now()):
                torch.autograd.backward(total, retain_graph=retain_graph)
            if self._patches.compiled is not None:
                self._patches.compiled.check_counts(losses, self.recorder.counts)
        finally:
            self.recorder.receive = self.recorder.keep
            self.recorder.stop()
