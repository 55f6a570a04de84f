"""Proof on the batch at hand that what the layers record are the examples' own gradients.

Rules and regions are exact if they see what they think they see; a model can still surprise them
(positions that look like examples, rows permuted inside, a layer that computes something else).
So few rows of the first batch of each kind of call are run three ways before it is used:

1. the bare model's losses, and the gradient of their sum weighted by powers of two;
2. the clipped model's losses, which must be the same;
3. its recorded uses with and without such weights: row i must be scaled by weight i, so that it
   depends on loss i alone, and the uses must add up to the bare model's gradient.

Backward is linear, so together these say that row i is the gradient of loss i. Any two rows differ
in their weight in one of the passes, of which eight rows need one and sixty-four two.

Worked example: two examples with the losses 2w and 3w, whose gradients are 2 and 3. What the layers
record of them with the losses weighted is held against the bare model's losses and gradient.

>>> from dpft.privacy.clipping.uses import GradientUse
>>> model, x = torch.nn.ParameterDict({"w": torch.tensor([1.0])}), torch.tensor([2.0, 3.0])
>>> trainable = TrainableParameters(model)
>>> bare = bare_run(model.w * x, trainable, loss_scale=1.0)
>>> def run(weights, receive):
...     receive("w", GradientUse((weights * x)[:, None]))
...     return (model.w * x).detach()
>>> check_against(bare, run, precision=None).name
'WHOLE'

Had the layer changed the rows' places, the sum would still be right, and no row its example's own:

>>> def swapped(weights, receive):
...     receive("w", GradientUse((weights * x).flip(0)[:, None]))
...     return (model.w * x).detach()
>>> bare = bare_run(model.w * x, trainable, loss_scale=1.0)
>>> try:
...     check_against(bare, swapped, precision=None)
... except Disproved as error:
...     print(error)
the gradient of w recorded for one example depends on another example's loss
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from dpft.privacy.clipping.separation.fingerprints import HALF_TOLERANCE, Disproved, Pass
from dpft.privacy.clipping.separation.graph import gradients_kept, ordinary_gradients, other_leaves
from dpft.privacy.clipping.trainable import TrainableParameters
from dpft.privacy.clipping.units import Shares
from dpft.privacy.clipping.uses import Use

EXPONENTS = 8
"""Weights are 2^-4 to 2^3: exact to multiply by, and no overflow."""
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
LEAST_SHARE = 1e-2
"""A parameter's gradient is compared by its own size, but not below this share of the whole."""
ROUNDINGS = 64
"""Units in the last place that a sum may be off, of the size of what it was added up from."""
Run = Callable[[Tensor, Callable[[str, Use], None]], Tensor]
"""(weights, receive): backward of the weighted losses, each use to ``receive``; returns the losses
without a graph."""


class OtherLosses(Disproved):
    """The clipped model's losses are not the bare model's."""


class Verdict(Enum):
    """What a proof that found nothing wrong has shown."""

    WHOLE = "that every parameter's gradients are the examples' own"
    PARTLY = "that of those parameters which had a gradient: the others may get one later"
    FOR_NOW = "that of the examples with finite values: for this batch, no more"


@dataclass(frozen=True)
class BareRun:
    """Losses and gradient of the model without the clipper, which the clipped model's must match.

    Attributes:
        losses: Shape (b,), or one of each unit.
        shares: The unit of each loss and of each row.
        weights: What each unit's losses are multiplied by, shape (units,), in each of the passes.
        gradients: Of the sum with the first weights, for each trainable parameter, by name.
        others: What else the losses have a gradient for, which a proof must leave alone.
    """

    losses: Tensor
    shares: Shares
    weights: Sequence[Tensor]
    gradients: dict[str, Tensor]
    others: Sequence[Tensor]


def bare_run(
    losses: Tensor,
    trainable: TrainableParameters,
    loss_scale: float,
    units: Tensor | None = None,
) -> BareRun:
    """Returns losses and weighted gradient of the bare model.

    Args:
        losses: Of each row, or of each unit, with their graph.
        trainable: The parameters whose gradients to take.
        loss_scale: What the losses are multiplied by before they are backpropagated.
        units: Unit of each row, where rows of one unit may depend on each other.

    Raises:
        RunError: The losses depend on a parameter that the clipper does not know.
    """
    parameters = trainable.now()
    others = other_leaves(losses, parameters)
    shares = Shares.of(units, losses)
    weights = _weights(shares.count, losses)
    first = weights[0][shares.losses] * loss_scale
    found = ordinary_gradients(losses, parameters, weights=first)
    pairs = zip(parameters, _apart([found.get(name) for name in parameters]), strict=True)
    gradients = {n: torch.zeros_like(parameters[n]) if g is None else g for n, g in pairs}
    return BareRun(losses.detach(), shares, weights, gradients, others)


def _weights(count: int, losses: Tensor) -> list[Tensor]:
    """Returns powers of two, shape (count,), in each pass: the digits of distinct numbers."""
    numbers = torch.randperm(count, device=losses.device)
    passes = max(1, math.ceil(math.log(count, EXPONENTS) - 1e-9))
    digits = [numbers // EXPONENTS**each % EXPONENTS for each in range(passes)]
    return [torch.exp2((digit - EXPONENTS // 2).to(losses.dtype)) for digit in digits]


def _apart(found: Sequence[Tensor | None]) -> Iterator[Tensor | None]:
    """Yields gradients in memory of their own: autograd may hand out one tensor as two."""
    seen: set[int] = set()
    for gradient in found:
        if gradient is None:
            yield None
            continue
        memory = gradient.untyped_storage()
        owned = memory.nbytes() == gradient.numel() * gradient.element_size()
        yield gradient if owned and memory.data_ptr() not in seen else gradient.clone()
        seen.add(memory.data_ptr())


def check_against(bare: BareRun, run: Run, *, precision: torch.dtype | None) -> Verdict:
    """Returns how far it is proved that the clipped model's uses are the examples' own gradients.

    Args:
        bare: From ``bare_run``; its gradients are used up.
        run: Runs the clipped model, the same each time it is called.
        precision: What the model computes in under autocast, or None.

    Raises:
        Disproved: Losses, rows or sums are not those of the bare model.
    """
    plain, rest, shares = Pass(), _Rest(bare), bare.shares
    with gradients_kept(bare.others):
        losses = run(torch.ones_like(bare.losses), plain.note)
        passes = [Pass() for _ in bare.weights]
        for number, (passed, weights) in enumerate(zip(passes, bare.weights, strict=True)):
            run(weights[shares.losses], passed.note if number else rest.also_subtract(passed.note))
    dtypes = {precision, *(use.dtype for use in plain.uses)}
    half, lossy = bool(dtypes & {torch.bfloat16, torch.float16}), torch.float16 in dtypes
    both = losses.isfinite() & bare.losses.isfinite()
    finite = plain.finite_rows(shares.all_of_unit(both)[shares.rows])
    tolerance = HALF_TOLERANCE if half else TOLERANCE.get(losses.dtype, HALF_TOLERANCE)
    if not torch.allclose(losses[both], bare.losses[both], rtol=tolerance, atol=1e-2 * tolerance):
        raise OtherLosses("its losses are not those of the model itself")
    for passed, weights in zip(passes, bare.weights, strict=True):
        of_rows = weights[shares.rows][finite]
        if not plain.check_scaled(passed, of_rows, finite, lossy=lossy):
            return Verdict.FOR_NOW
    if not bool(finite.all()):
        return Verdict.FOR_NOW
    rest.check_nothing_is_left(tolerance, half=half)
    everyone = plain.parameters_with_gradients() >= set(bare.gradients)
    return Verdict.WHOLE if everyone else Verdict.PARTLY


class _Rest:
    """The bare model's gradient, less what the uses add up to."""

    def __init__(self, bare: BareRun) -> None:
        self._left = bare.gradients
        self._sizes = {name: g.norm() for name, g in bare.gradients.items()}
        self._norm_bounds = {n: torch.zeros_like(size) for n, size in self._sizes.items()}

    def also_subtract(self, note: Callable[[str, Use], None]) -> Callable[[str, Use], None]:
        """Returns a receiver that hands each use to ``note`` and subtracts what it sums to."""

        def receive(name: str, use: Use) -> None:
            note(name, use)
            bound = use.norm_bound()
            self._norm_bounds[name] += bound.square().sum().sqrt()
            use.add_weighted_sum(-torch.ones_like(bound), self._left[name])

        return receive

    def check_nothing_is_left(self, tolerance: float, *, half: bool) -> None:
        """Refuses uses that do not add up to the bare model's gradients.

        Raises:
            Disproved: A parameter's uses do not add up to its gradient.
        """
        whole = torch.stack(list(self._sizes.values())).norm()
        for name, left in self._left.items():
            rounding = torch.finfo(torch.bfloat16 if half else left.dtype).eps * ROUNDINGS
            size = self._sizes[name].clamp(min=LEAST_SHARE * float(whole))
            allowed = tolerance * size + rounding * self._norm_bounds[name]
            if not bool(left.norm() <= allowed + torch.finfo(left.dtype).tiny):
                raise Disproved(f"what its layers record does not add up to the gradient of {name}")
