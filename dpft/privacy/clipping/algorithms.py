"""The four algorithms that add a clipped sum: the same sum, by other ways in time and memory.

- ``book_keeping``: one backward pass that keeps each layer's input and output gradient and forms no
  weight gradient. From those come the per-example norms, and, once the clip factors are known, the
  same matrix product an ordinary backward would have done, with weights (Bu et al. 2023). Where
  per-example gradients cost less than what they replace they are formed in the backward
  pass at once, and the contraction is a weighted sum of them.
- ``instantiate``: per-example gradients, formed in the one backward pass; nothing else is held. For
  small trainable sets (adapters, biases, norm layers), where a gradient for each example takes
  less memory than the activations it is made of (Bu et al. 2022, section 3).
- ``two_pass``: norms first, then a second backward pass over the same graph that sums. The first
  pass takes each use's squared norm as backward meets it and lets the use go; the second contracts
  each use at once, weighted by its clip factors. Little is held beyond what ordinary training
  holds, so gradient checkpointing keeps its savings. Both passes backpropagate the same unscaled
  losses, so that under bfloat16 they round alike, and the factors belong to the very gradients that
  are summed (docs/design.md, the clipper). Small gradients, of biases and norm layers, are kept
  from the first pass: where nothing else trains, there is no second.
- ``loop``: one batched forward, then one backward pass for each example. Slow and beyond doubt;
  every other algorithm is tested against it.

Where the terms of an example's gradient cancel to a share s of their size, ``instantiate`` and
``loop``, which form it in float32, round it by about 1e-7 / s; ``book_keeping`` and ``two_pass``
form it in float64 where s is below 1e-3. Each clips by the norm of the very gradient that it adds.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config

from dpft.errors import RunError
from dpft.privacy.clipping.choices import FLOAT_BYTES, Tuning, check_engine_name, keeping_is_cheaper
from dpft.privacy.clipping.engine import (
    ClipDecision,
    ClippedBatch,
    ClippingStyle,
    Engine,
    LossFunction,
)
from dpft.privacy.clipping.heads import (
    Span,
    WideUse,
    is_wide,
    widen,
)
from dpft.privacy.clipping.loss_check import LoopLossCheck
from dpft.privacy.clipping.norms import CarefulSquares
from dpft.privacy.clipping.patch_use import PatchUse
from dpft.privacy.clipping.recording import CollectedNorms, NormCollector, RecordingEngine, Rows
from dpft.privacy.clipping.separation.proof import ordinary_gradients
from dpft.privacy.clipping.uses import GradientUse, OuterProduct, Use, merge_uses


class BookKeepingEngine(RecordingEngine):
    """Exact clipped sums at about the cost of ordinary training."""

    def accumulate(self, losses: Tensor, units: Tensor | None) -> ClippedBatch:
        """See ``Engine.accumulate``."""
        self._memory = self.tuning.memory_mb * 2**20
        try:
            self.backward(losses, self._keep)
        finally:
            uses = self.recorder.take()
        with torch.no_grad():
            rows = Rows(losses, units)
            for kept in uses.values():
                kept[:] = [rows.fold(widen(use)) for use in merge_uses(kept)]
            return self.add_clipped(uses, rows)

    def _keep(self, name: str, use: Use) -> None:
        """Keeps a use, as per-example gradients where that is cheaper."""
        if isinstance(use, OuterProduct | PatchUse) and name not in self.shared:
            shape = use.shape
            if keeping_is_cheaper(shape, self._memory):
                if shape.instantiated_bytes > shape.factored_bytes:
                    self._memory -= shape.instantiated_bytes
                use = GradientUse(use.instantiate())
        self.recorder.keep(name, use)


class InstantiateEngine(RecordingEngine):
    """Exact clipped sums from explicit per-example gradients, all examples at once."""

    def accumulate(self, losses: Tensor, units: Tensor | None) -> ClippedBatch:
        """See ``Engine.accumulate``."""
        rows = Rows(losses, units)
        gradients: dict[str, list[Use]] = {}

        def receive(name: str, use: Use) -> None:
            gradient = rows.fold(GradientUse(use.instantiate()))
            if name in gradients:
                gradient = GradientUse(gradients[name][0].instantiate() + gradient.instantiate())
            gradients[name] = [gradient]

        with torch.no_grad():
            self.backward(losses, receive)
            return self.add_clipped(gradients, rows)


class TwoPassEngine(RecordingEngine):
    """Exact clipped sums in little memory, for one more pass over the activations."""

    passes = 3
    """For norms, for those that are taken again with care, and for the sum."""

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
                recheck = partial(self._recheck, losses, rows)
                decision = self.decide(collected, rows, recheck)
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
                collector.add(name, self._folded(name, [use], rows))

        try:
            self.backward(losses, receive, retain_graph=True)
        finally:
            kept = self.recorder.take()
        if not reused:
            with torch.no_grad():
                for name, uses in kept.items():
                    collector.add(name, self._folded(name, uses, rows))
        return reused

    def _recheck(self, losses: Tensor, rows: Rows, names: set[str]) -> dict[str, CarefulSquares]:
        """Takes the norms of some parameters with care, in one more pass over the graph."""
        careful: dict[str, CarefulSquares] = {}

        def take(name: str, *uses: Use) -> None:
            folded = self._folded(name, uses, rows)
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

    def _folded(self, name: str, uses: Sequence[Use], rows: Rows) -> list[Use]:
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

        def widened_again(name: str, use: Use) -> Use:
            """Of a vocabulary's weight with the positions that counted before."""
            spans = self._spans.get((name, use.left.shape[1])) if is_wide(use) else None
            return widen(use, spans)

        def add(name: str, *uses: Use) -> None:
            folded = [rows.fold(widened_again(name, use)) for use in uses]
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


BLOCK = 2**20


class LoopEngine(Engine):
    """Clipped sums from explicit per-example gradients, one example in memory at a time.

    That examples do not mix is checked here as in every engine; how their gradients are told
    apart needs no proof. A non-finite example alone in its batch contributes zero, as in every
    engine; among others it is refused, since backward through the shared graph mixes it into them.
    """

    def __init__(
        self,
        model: nn.Module,
        style: ClippingStyle,
        *,
        groups: Mapping[str, int] | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        super().__init__(model, style, groups=groups, tuning=tuning)
        self._check = LoopLossCheck(model, self.trainable)
        self.looks = True
        """Whether losses are checked; not where another engine has checked the same ones."""

    def install(self) -> None:
        """Watches the model's calls; its layers stay as they are."""
        self._check.install()

    def remove(self) -> None:
        """Leaves the model alone."""
        self._check.remove()

    def compute(self, compute_losses: LossFunction, units: Tensor | None = None) -> Tensor:
        """See ``Engine.compute``."""
        return self._check.losses(compute_losses, units) if self.looks else compute_losses()

    def accumulate(self, losses: Tensor, units: Tensor | None) -> ClippedBatch:
        """See ``Engine.accumulate``."""
        if units is None or len(units) != len(losses):
            groups = list(losses)
        else:
            groups = [losses[units == unit].sum() for unit in torch.unique(units)]
        norms, non_finite = [], 0
        for number, loss in enumerate(groups):
            decision = self._add_clipped(loss, last=number == len(groups) - 1)
            if decision.non_finite and len(groups) > 1:
                raise RunError(
                    "`engine='loop'` cannot keep a non-finite example from spoiling the others of "
                    "its micro-batch (0 * nan is nan); set `b=1`, one example at a time, or "
                    "another engine."
                )
            norms.append(decision.norms)
            non_finite += decision.non_finite
        self.sums.flush()
        return ClippedBatch(norms=torch.cat(norms), non_finite=non_finite)

    def _add_clipped(self, loss: Tensor, *, last: bool) -> ClipDecision:
        """Adds one clipped gradient, unless it is not finite; returns what its norm decided."""
        scale = torch.full_like(loss, self.tuning.scale)
        parameters = self.trainable.now()
        used = ordinary_gradients(loss, parameters, weights=scale, retain_graph=not last)
        squares = self.new_squares(1)
        for name, gradient in used.items():
            # In float64, block by block to save memory.
            blocks = gradient.reshape(-1).split(BLOCK)
            sums = torch.stack([block.double().square().sum() for block in blocks])
            squares[self.groups[name]] += sums.sum()
        decision = self.decide_clipping(squares, loss.detach().isfinite()[None])
        if decision.everyone_is_finite:
            for name, gradient in used.items():
                parameter = parameters[name]
                factor = decision.factors[self.groups[name], 0].to(parameter.dtype)
                parameter.grad = self.sums.add(name, parameter.grad, gradient * factor)
        return decision


ENGINES: dict[str, type[Engine]] = {
    "book_keeping": BookKeepingEngine,
    "two_pass": TwoPassEngine,
    "instantiate": InstantiateEngine,
    "loop": LoopEngine,
}
SMALL_SHARE = 0.1
"""Share of the parameters up to which a trainable set is small: adapters, biases, norms."""
NOMINAL_EXAMPLES = 32
"""Micro-batch that ``auto`` reckons with; the real one may change without changing the choice."""

logger = logging.getLogger(__name__)


def make_engine(
    name: str, model: nn.Module, style: ClippingStyle, *, groups: Mapping[str, int], tuning: Tuning
) -> Engine:
    """Returns the engine called ``name``, or the one that ``auto`` picks, which is logged.

    Raises:
        InputError: No such engine, or as the engine itself.
    """
    taken, reason = resolved_engine(name, model, tuning)
    if name == "auto":
        logger.info("`engine='auto'` takes %s: %s", taken, reason)
    return ENGINES[taken](model, style, groups=groups, tuning=tuning)


def resolved_engine(name: str, model: nn.Module, tuning: Tuning) -> tuple[str, str]:
    """Returns the engine that a name stands for, and why.

    Raises:
        InputError: No such engine.
    """
    check_engine_name(name)
    return automatic_choice(model, tuning) if name == "auto" else (name, "it was asked for")


def automatic_choice(model: nn.Module, tuning: Tuning) -> tuple[str, str]:
    """Returns an engine and why, from shapes, switches and the budget; never from a timing."""
    total = sum(p.numel() for p in model.parameters())
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    needed = trainable * FLOAT_BYTES * NOMINAL_EXAMPLES
    if trainable <= SMALL_SHARE * total and needed <= tuning.memory_mb * 2**20:
        return "instantiate", "the trainable parameters are few"
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        return "two_pass", "the model recomputes its activations to save memory"
    return "book_keeping", "it needs one backward pass"
