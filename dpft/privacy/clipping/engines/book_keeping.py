"""Book-keeping: one backward pass, then one weighted contraction per parameter.

The backward pass forms no weight gradient; the layer rules keep each layer's input and output
gradient instead. From those come the per-example norms, and, once the clip factors are known,
the same matrix product an ordinary backward would have done, with weights (Bu et al. 2023).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dpft.errors import InputError, RunError
from dpft.privacy.clipping.engines.base import ClippedBatch, Engine, gradient_buffer
from dpft.privacy.clipping.factors import ClippingStyle
from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.rules import Rule, find_rule
from dpft.privacy.clipping.uses import Units, Use, merge_uses, squared_norms


class BookKeepingEngine(Engine):
    """Exact clipped sums at about the cost of ordinary training."""

    def __init__(self, model: nn.Module, style: ClippingStyle) -> None:
        """Finds a rule for every layer that owns a trainable parameter.

        Raises:
            InputError: A trainable parameter belongs to a layer without a rule.
        """
        super().__init__(model, style)
        self._recorder = Recorder(self.names)
        self._rules = dict(_rules_for(model))
        self._patched: list[nn.Module] = []

    def install(self) -> None:
        """Gives each layer its recording forward.

        Raises:
            InputError: A layer's forward is already replaced, by a second clipper or by hand.
        """
        for layer, rule in self._rules.items():
            if "forward" in vars(layer):
                self.remove()
                raise InputError(
                    f"a {type(layer).__name__} layer must have its own forward, got a replaced "
                    "one; leave the other clipper first."
                )
            layer.forward = rule(layer, self._recorder)
            self._patched.append(layer)

    def remove(self) -> None:
        """Takes the recording forwards away; the layers' own reappear."""
        while self._patched:
            del self._patched.pop().forward

    def accumulate(self, losses: Tensor, units: Tensor | None) -> ClippedBatch:
        """See ``Engine.accumulate``."""
        self._recorder.start(len(losses))
        uses = self._backward(losses)
        grouping = None if units is None else Units.of(units)
        finite = losses.detach().isfinite()
        with torch.no_grad():
            if grouping is not None:
                uses = {p: [use.by_unit(grouping) for use in kept] for p, kept in uses.items()}
                finite = grouping.sum((~finite).int()) == 0
            return self._clip_and_add(uses, finite)

    def _backward(self, losses: Tensor) -> dict[Tensor, list[Use]]:
        """Returns every trainable parameter's uses, merged by kind."""
        with _watch_for_unrecorded_gradients(self.names):
            try:
                losses.sum().backward()
            finally:
                uses = self._recorder.take()
        return {parameter: merge_uses(kept) for parameter, kept in uses.items()}

    def _clip_and_add(self, uses: dict[Tensor, list[Use]], finite: Tensor) -> ClippedBatch:
        """Computes norms and factors, then contracts; each use is freed once contracted."""
        squares = [squared_norms(kept) for kept in uses.values()]
        total = torch.stack(squares).sum(0) if squares else finite.float() * 0
        # A negative total would be a NaN norm, and a NaN factor would spoil every example's sum.
        finite = finite & total.isfinite() & (total >= 0)
        if not bool(finite.all()):
            uses = {p: [use.keep(finite) for use in kept] for p, kept in uses.items()}
        norms = torch.where(finite, total, 0).sqrt()
        factors = self.style.factors(norms)
        while uses:
            parameter, kept = uses.popitem()
            for use in kept:
                use.add_weighted_sum(factors.to(parameter.dtype), gradient_buffer(parameter))
        return ClippedBatch(norms=norms, non_finite=int((~finite).sum()))


def _rules_for(model: nn.Module) -> Iterator[tuple[nn.Module, Rule]]:
    """Yields every layer that owns a trainable parameter, with its rule."""
    for path, module in model.named_modules():
        own = [name for name, p in module.named_parameters(recurse=False) if p.requires_grad]
        if not own:
            continue
        rule = find_rule(module)
        if rule is None or not set(own) <= {"weight", "bias"}:
            parameters = ", ".join(f"{path}.{name}" if path else name for name in own)
            raise InputError(
                f"trainable parameter {parameters} belongs to a {type(module).__name__} layer, "
                "for which there is no per-example gradient rule; freeze it or choose "
                "privacy.engine=loop."
            )
        yield module, rule


@contextmanager
def _watch_for_unrecorded_gradients(names: dict[Tensor, str]) -> Iterator[None]:
    """Sets gradients aside during a backward pass that must form none.

    Raises:
        RunError: A parameter got an ordinary gradient, so it is used outside its own layer's
            forward, where no rule sees it and no clipping would reach it.
    """
    held = {parameter: parameter.grad for parameter in names}
    for parameter in names:
        parameter.grad = None
    try:
        yield
        for parameter, name in names.items():
            if parameter.grad is not None:
                raise RunError(
                    f"parameter {name} is used outside its layer's forward, where its per-example "
                    "gradients cannot be seen; choose privacy.engine=loop."
                )
    finally:
        for parameter, gradient in held.items():
            parameter.grad = gradient
