"""Two-pass: norms first, then a second backward pass over the same graph that sums.

The first pass takes each use's squared norm as backward meets it and lets the use go; the second
contracts each use at once, weighted by its clip factors. Little is held beyond what ordinary
training holds, so gradient checkpointing keeps its savings. Both passes backpropagate the same
unscaled losses, so that under bfloat16 they round alike, and the factors belong to the very
gradients that are summed (docs/design.md, the clipper). Small gradients, of biases and norm layers,
are kept from the first pass: where nothing else trains, there is no second.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch
from torch import Tensor
from torch._functorch import config as functorch_config

from dpft.privacy.clipping.engines.base import ClipDecision, ClippedBatch, LossFunction
from dpft.privacy.clipping.engines.norm_collector import CollectedNorms, NormCollector
from dpft.privacy.clipping.engines.recording import RecordingEngine
from dpft.privacy.clipping.engines.rows import Rows
from dpft.privacy.clipping.norms import CarefulSquares
from dpft.privacy.clipping.patch_use import PatchUse
from dpft.privacy.clipping.uses import GradientUse, Use, merge_uses
from dpft.privacy.clipping.wide import Span, WideUse, is_wide, widen, widen_at_a_glance


class TwoPassEngine(RecordingEngine):
    """Exact clipped sums in little memory, for one more pass over the activations."""

    def compute(self, compute_losses: LossFunction, units: Tensor | None = None) -> Tensor:
        """See ``Engine.compute``; what is compiled here keeps what a second pass needs."""
        with _keeping_buffers():
            return super().compute(compute_losses, units)

    def accumulate(self, losses: Tensor, units: Tensor | None) -> ClippedBatch:
        """See ``Engine.accumulate``."""
        rows = Rows(losses, units)
        with _rounding_alike(losses.device), _keeping_buffers():
            collected = self._collected(losses, rows)
            with torch.no_grad():
                look_again = partial(self._look_again, losses, rows)
                decision = self.decide(collected, rows, look_again)
            if not collected.all_are_small:
                self._contract(losses, rows, decision, collected.small)
            with torch.no_grad():
                self.add_small_gradients(collected.matrices, decision)
                self.sums.flush()
        return decision.clipped_batch()

    def _collected(self, losses: Tensor, rows: Rows) -> CollectedNorms:
        """Returns the norms; no use outlives the pass, but small gradients."""
        while True:
            collector = NormCollector(self.groups, rows)
            self._spans: dict[tuple[str, int], tuple[Span, ...]] = {}
            reused = self._norm_pass(losses, rows, collector)
            if not reused:
                with torch.no_grad():
                    return collector.result(self.negligible)
            # A layer called twice: its uses need each other. Once per model, not per batch.
            self.shared |= reused

    def _norm_pass(self, losses: Tensor, rows: Rows, collector: NormCollector) -> set[str]:
        """Runs one backward pass that lets each use go once its norm is taken.

        Returns:
            The names of parameters with several uses though they were not known as shared: where
            there are any, the norms are wrong.
        """
        met: set[str] = set()
        reused: set[str] = set()

        def receive(name: str, use: Use) -> None:
            if name in self.shared:
                self.recorder.keep(name, use)
            elif name in met:
                reused.add(name)
            else:
                met.add(name)
                collector.add(name, self._folded(name, [use], rows, widen_at_a_glance))

        try:
            self.backward(losses, receive, retain_graph=True)
        finally:
            kept = self.recorder.take()
        if not reused:
            with torch.no_grad():
                for name, uses in kept.items():
                    collector.add(name, self._folded(name, uses, rows, widen_at_a_glance))
        return reused

    def _look_again(self, losses: Tensor, rows: Rows, names: set[str]) -> dict[str, CarefulSquares]:
        """Takes the norms of some parameters with care, in one more pass over the graph."""
        careful: dict[str, CarefulSquares] = {}

        def take(name: str, *uses: Use) -> None:
            folded = self._folded(name, uses, rows, widen)
            careful[name] = rows.squared_norms(folded, self.negligible)

        def receive(name: str, use: Use) -> None:
            if name in names and name in self.shared:
                self.recorder.keep(name, use)
            elif name in names:
                take(name, use)

        self.backward(losses, receive, retain_graph=True)
        for name, uses in self.recorder.take().items():
            take(name, *uses)
        return careful

    def _folded(
        self, name: str, uses: Sequence[Use], rows: Rows, widen: Callable[[Use], Use]
    ) -> list[Use]:
        """Returns a parameter's uses merged and folded; remembers where a vocabulary's count."""
        widened = [widen(use) for use in merge_uses(uses)]
        for use in widened:
            if isinstance(use, WideUse):
                self._spans[name, use.left.shape[1]] = use.spans
        return [rows.fold(use) for use in widened]

    def _contract(self, losses: Tensor, rows: Rows, decision: ClipDecision, kept: Set[str]) -> None:
        """Adds the weighted sums to the gradients in a second pass, use by use.

        Args:
            losses: One of each row, or of each unit.
            rows: The batch's rows.
            decision: What decides the weights.
            kept: Names of the parameters whose gradients the first pass kept.
        """
        parameters = self.trainable.now()
        sums = {name: parameter.grad for name, parameter in parameters.items()}

        def add(name: str, *uses: Use) -> None:
            folded = [rows.fold(self._widened_again(name, use)) for use in uses]
            part = rows.weighted_sum(name, folded, decision, self.groups[name])
            sums[name] = self.sums.add(name, sums[name], part.to(parameters[name].dtype))

        def receive(name: str, use: Use) -> None:
            if name in kept:
                return
            together = isinstance(use, GradientUse | PatchUse) or name in decision.formed
            if name in self.shared and together:
                # Added to the others before it is weighted, as it was before the norm.
                self.recorder.keep(name, use)
            else:
                add(name, use)

        self.backward(losses, receive)
        with torch.no_grad():
            for name, uses in self.recorder.take().items():
                add(name, *merge_uses(uses))
            self.sums.flush()
            for name, total in sums.items():
                parameters[name].grad = total

    def _widened_again(self, name: str, use: Use) -> Use:
        """Returns a use of a vocabulary's weight with the positions that counted before."""
        spans = self._spans.get((name, use.left.shape[1])) if is_wide(use) else None
        return widen(use) if spans is None else widen_at_a_glance(use, spans)


def _keeping_buffers() -> AbstractContextManager[None]:
    """Makes torch.compile keep what a second pass over a graph reads again."""
    context: AbstractContextManager[None] = functorch_config.patch(donated_buffer=False)
    return context


@contextmanager
def _rounding_alike(device: torch.device) -> Iterator[None]:
    """Makes two passes over one graph round alike where an accelerator's would not.

    A factor must belong to the very gradient it weights. On a CPU backward passes repeat bit for
    bit; on an accelerator atomic additions, such as fused attention's, come in any order.
    """
    before = torch.get_deterministic_debug_mode()
    if device.type != "cpu" and not before:
        torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
