"""Two-pass: norms first, then a second backward pass over the same graph that sums.

The first pass takes each use's squared norm as backward meets it and lets the use go; the second
contracts each use at once, weighted by its clip factors. Little is held beyond what ordinary
training holds, so gradient checkpointing keeps its savings. Both passes backpropagate the same
unscaled losses, so that under bfloat16 they round alike, and the factors belong to the very
gradients that are summed (docs/design.md, the clipper).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch
from torch import Tensor
from torch._functorch import config as functorch_config

from dpft.privacy.clipping.engines.base import ClipDecision, ClippedBatch, LossFunction
from dpft.privacy.clipping.engines.recording import RecordingEngine
from dpft.privacy.clipping.engines.rows import Rows
from dpft.privacy.clipping.uses import GradientUse, Use, merge_uses
from dpft.privacy.clipping.wide import widen


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
            squares = self._squared_norms(losses, rows)
            with torch.no_grad():
                decision = self.decide_clipping(squares, rows.finite)
            self._contract(losses, rows, decision)
        return decision.clipped_batch()

    def _squared_norms(self, losses: Tensor, rows: Rows) -> Tensor:
        """Returns the squared norms, shape (groups, units); no use outlives the pass."""
        while True:
            squares, reused = self._norm_pass(losses, rows)
            if not reused:
                return squares
            # A layer called twice: its uses need each other. Once per model, not per batch.
            self.shared |= reused

    def _norm_pass(self, losses: Tensor, rows: Rows) -> tuple[Tensor, set[str]]:
        """Runs one backward pass that lets each use go once its norm is taken.

        Returns:
            The squared norms, shape (groups, units), and the names of parameters with several
            uses though they were not known as shared: where there are any, the norms are wrong.
        """
        squares = self.new_squares(len(rows.finite))
        met: set[str] = set()
        reused: set[str] = set()

        def receive(name: str, use: Use) -> None:
            if name in self.shared:
                self.recorder.keep(name, use)
            elif name in met:
                reused.add(name)
            else:
                met.add(name)
                squares[self.groups[name]] += self._norms_of([use], rows)

        try:
            self.backward(losses, receive, retain_graph=True)
        finally:
            kept = self.recorder.take()
        if not reused:
            for name, uses in kept.items():
                squares[self.groups[name]] += self._norms_of(merge_uses(uses), rows)
        return squares, reused

    def _norms_of(self, uses: list[Use], rows: Rows) -> Tensor:
        return rows.squared_norms([rows.fold(widen(use)) for use in uses], self.negligible)

    def _contract(self, losses: Tensor, rows: Rows, decision: ClipDecision) -> None:
        """Adds the weighted sums to the gradients in a second pass, use by use."""
        parameters = self.trainable.now()
        sums = {name: parameter.grad for name, parameter in parameters.items()}

        def add(name: str, use: Use) -> None:
            weigh = partial(rows.add_weighted_sum, rows.fold(use), decision, self.groups[name])
            sums[name] = self.sums.add(name, parameters[name], sums[name], weigh)

        def receive(name: str, use: Use) -> None:
            if name in self.shared and isinstance(use, GradientUse):
                # Added to the others before it is weighted, as it was before the norm.
                self.recorder.keep(name, use)
            else:
                add(name, widen(use))

        self.backward(losses, receive)
        with torch.no_grad():
            for name, uses in self.recorder.take().items():
                add(name, *merge_uses(uses))
        for name, total in sums.items():
            parameters[name].grad = total


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
