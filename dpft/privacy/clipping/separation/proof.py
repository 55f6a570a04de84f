"""The gradient proof: what layers record of a batch at hand are the examples' own gradients.

Rules and regions are exact if they see what they think they see; a model can still surprise them
(positions that look like examples, rows permuted inside, a layer that computes something else).
So few rows of the first batch of each kind of call are run three ways before it is used:

1. the bare model's losses, and the gradient of their sum weighted by powers of two;
2. the clipped model's losses, which must be the same;
3. its recorded uses with and without such weights: row i must be scaled by weight i, so that it
   depends on loss i alone, and the uses must add up to the bare model's gradient.

Backward is linear, so together these say that row i is the gradient of loss i. Any two rows differ
in their weight in one of the passes, of which eight rows need one and sixty-four two. To hold the
uses of two passes would take the memory of all the layers' inputs and output gradients twice, so of
each row five numbers are kept: its norm, and its projections onto four directions. They are scaled
exactly where the row is (``Fingerprint``). The directions are this process's own: a backward pass
that knew them could turn a row about them, and leave all numbers as they are
(``secret_directions``).

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
... except NotExact as error:
...     print(error)
the gradient of w recorded for one example depends on another example's loss
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Self

import torch
from torch import Tensor, nn

from dpft.errors import RunError
from dpft.privacy.clipping.separation.fingerprints import secret_directions
from dpft.privacy.clipping.trainable import Shares, TrainableParameters
from dpft.privacy.clipping.uses import Use


def describe_graph(losses: Tensor, parameters: Mapping[str, Tensor]) -> int:
    """Returns a digest of the operations behind losses and of their order.

    Two batches with one digest took one way through one computation, whatever their sizes.

    Args:
        losses: Shape (b,).
        parameters: What the clipper knows, by name.

    Raises:
        RunError: The losses depend on a parameter that the clipper does not know.
    """
    known = set(map(id, parameters.values()))
    nodes = list(_nodes(losses))
    for node in nodes:
        _check_leaf(node, known)
    return hash(tuple([node.name() for node in nodes]))


def other_leaves(losses: Tensor, parameters: Mapping[str, Tensor]) -> list[Tensor]:
    """Returns the leaves beside the parameters that the losses have a gradient for.

    Such as embeddings that a caller made the model's inputs.

    Raises:
        RunError: A parameter is among them, whose gradient would not be clipped.
    """
    known = set(map(id, parameters.values()))
    found = [_check_leaf(node, known) for node in _nodes(losses)]
    return [leaf for leaf in found if leaf is not None]


def ordinary_gradients(
    losses: Tensor,
    parameters: Mapping[str, Tensor],
    *,
    weights: Tensor,
    retain_graph: bool = False,
) -> dict[str, Tensor]:
    """Returns the gradients of a weighted sum by name, of the parameters that have one.

    A whole backward pass, as reentrant checkpoints need; ``grad`` of everything stays as it was.
    """
    touched = [*parameters.values(), *other_leaves(losses, parameters)]
    with gradients_kept(touched):
        torch.autograd.backward(losses, weights, retain_graph=retain_graph)
        with torch._C.DisableTorchFunction():
            return {name: p.grad for name, p in parameters.items() if p.grad is not None}


@contextmanager
def gradients_kept(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Sets gradients aside while backward passes make others."""
    with torch._C.DisableTorchFunction():  # no mode that a check runs in sees a thousand of these
        held = [(tensor, tensor.grad) for tensor in tensors]
        for tensor in tensors:
            tensor.grad = None
    try:
        yield
    finally:
        with torch._C.DisableTorchFunction():
            for tensor, gradient in held:
                tensor.grad = gradient


def _check_leaf(node: Any, known: Collection[int]) -> Tensor | None:
    """Returns the leaf that a node accumulates into, unless it is one of the known parameters."""
    leaf: Tensor | None = getattr(node, "variable", None)
    if leaf is None or id(leaf) in known:
        return None
    if isinstance(leaf, nn.Parameter):
        raise RunError(
            f"the losses depend on a trainable parameter of shape {tuple(leaf.shape)} outside the "
            "clipped model, whose gradient would not be clipped; make it a part of the model or "
            "freeze it."
        )
    return leaf


def _nodes(losses: Tensor) -> Iterator[Any]:
    """Yields the nodes of a graph, each once, in an order that follows its structure."""
    waiting: list[Any] = [losses.grad_fn]
    seen = {None}
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]


HALF_TOLERANCE = 5e-2
LOST_TO_FLOAT16 = 1e-4
"""Norm of a whole row under which float16, with steps of 6e-8 there, says nothing."""
MIXED = {torch.float64: 1e-9, torch.float32: 1e-5}
"""Most that a row may differ from its scaled self: other rows' share in it."""
MIXED_ELSEWHERE = 1e-3
"""The same in half precision, and where an accelerator adds in any order."""


class NotExact(Exception):
    """What the layers record are not the examples' own gradients; the message says how so."""


@dataclass
class RecordedPass:
    """The uses that one backward pass met, in order."""

    uses: list["Fingerprint"] = field(default_factory=list)

    def note(self, name: str, use: Use) -> None:
        """Keeps a fingerprint of a use."""
        self.uses.append(Fingerprint.of(name, use))

    def finite_rows(self, rows: Tensor) -> Tensor:
        """Returns which of the rows, shape (b,), are finite in every use."""
        each = [tensor.isfinite().all(0) for use in self.uses for tensor in use.rows]
        return torch.stack([rows, *each]).all(0)

    def parameters_with_gradients(self) -> set[str]:
        """Returns the names of parameters to whose gradient some row of a use adds something."""
        peaks = [use.smallest_peak() for use in self.uses]
        found = torch.stack(peaks).tolist() if peaks else ()  # one look at the device
        return {use.name for use, peak in zip(self.uses, found, strict=True) if peak > 0}

    def check_scaled(
        self,
        other: "RecordedPass",
        weights: Tensor,
        finite: Tensor,
        *,
        lossy: bool,
    ) -> bool:
        """Compares each use with itself in a pass with weights; False where float16 lost it.

        Args:
            other: The pass with weights.
            weights: Of the finite rows.
            finite: Which rows to compare, shape (b,).
            lossy: Whether anything was computed in float16.

        Raises:
            NotExact: A row that should be scaled by its weight is something else.
        """
        if len(self.uses) != len(other.uses):
            raise NotExact("two backward passes met different uses of its weights")
        rows = finite.nonzero()[:, 0]
        pairs = list(zip(self.uses, other.uses, strict=True))
        become = [a.at(rows).becomes(b.at(rows), weights, lossy=lossy) for a, b in pairs]
        found = torch.stack(become).tolist() if pairs else ()  # one look at the device
        for (before, _), does in zip(pairs, found, strict=True):
            if does:
                continue
            if lossy and before.smallest_peak_norm < LOST_TO_FLOAT16:
                return False
            raise NotExact(
                f"the gradient of {before.name} recorded for one example depends on "
                "another example's loss"
            )
        return True


@dataclass(frozen=True)
class Fingerprint:
    """Enough of a use to see whether each of its rows was scaled.

    Attributes:
        name: Name of the parameter whose use it is.
        dtype: The dtype of the use's tensors.
        rows: For each tensor of the use its rows' norms and projections, shape (2, b).
    """

    name: str
    dtype: torch.dtype
    rows: tuple[Tensor, ...]

    @classmethod
    def of(cls, name: str, use: Use) -> Self:
        """Returns the fingerprint of a use of the parameter called ``name``."""
        tensors = [t for t in vars(use).values() if isinstance(t, Tensor) and t.is_floating_point()]
        return cls(name, tensors[0].dtype, tuple(_norms_and_projections(t) for t in tensors))

    @property
    def smallest_peak_norm(self) -> float:
        """The least peak norm of the use's tensors: that of a tensor is its largest finite row's.

        It is 0 where a whole tensor of the use is 0, so that the use adds nothing to any gradient.
        """
        return float(self.smallest_peak())

    def smallest_peak(self) -> Tensor:
        """Returns the same as a tensor, which is not looked at."""
        peaks = [rows[0].nan_to_num(0.0, 0.0).max().double() for rows in self.rows]
        return torch.stack(peaks).min()

    def at(self, rows: Tensor) -> Self:
        """Returns the fingerprint of some rows alone, by their places."""
        return replace(self, rows=tuple(each[:, rows] for each in self.rows))

    def becomes(self, other: "Fingerprint", weights: Tensor, *, lossy: bool) -> Tensor:
        """Whether ``other`` is the fingerprint of this use with row i scaled by ``weights[i]``.

        What is returned has one number, bool, and is not looked at here.

        Of a product's two tensors backward scales one; so each must be scaled or unchanged, and
        one at least scaled.
        """
        if self.name != other.name or len(self.rows) != len(other.rows):
            return torch.zeros((), dtype=torch.bool, device=weights.device)
        pairs = list(zip(self.rows, other.rows, strict=True))
        close = [self._close(mine * weights, theirs, lossy=lossy) for mine, theirs in pairs]
        scaled = torch.stack(close)
        same = torch.stack([self._close(mine, theirs, lossy=lossy) for mine, theirs in pairs])
        return scaled.any() & (scaled | same).all()

    def _close(self, expected: Tensor, got: Tensor, *, lossy: bool) -> Tensor:
        """Whether rows agree, each by its own norm, down to a trace of the largest."""
        if expected.shape[1] == 0:
            return torch.ones((), dtype=torch.bool, device=expected.device)
        mixed, trace = MIXED.get(self.dtype, MIXED_ELSEWHERE), 1e-6
        if expected.device.type != "cpu":
            mixed = MIXED_ELSEWHERE
        if lossy:
            mixed, trace = HALF_TOLERANCE, 1e-3
        # Below 1e-30 float32 numbers lose digits.
        least = (trace * expected[0].max()).clamp(min=1e-30)
        return ((expected - got).abs() <= mixed * expected[0].clamp(min=least)).all()


def _norms_and_projections(tensor: Tensor) -> Tensor:
    """Returns five numbers a row that are scaled exactly where the row is, shape (5, b)."""
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    width = tensor.shape[-1] if tensor.dim() > 1 else 1
    rows = tensor.reshape(len(tensor), -1, width)
    norms = torch.linalg.vector_norm(rows.flatten(1), dim=1, dtype=dtype)
    down, across = secret_directions(rows.shape[1:], rows.device)
    projected = (rows @ across.to(rows.dtype)).to(torch.float64) * down.to(rows.dtype).double()
    return torch.cat([norms.unsqueeze(0), projected.sum(1).T])


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


class OtherLosses(NotExact):
    """The clipped model's losses are not the bare model's."""


class CheckResult(Enum):
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
    pairs = zip(parameters, _unaliased([found.get(name) for name in parameters]), strict=True)
    gradients = {n: torch.zeros_like(parameters[n]) if g is None else g for n, g in pairs}
    return BareRun(losses.detach(), shares, weights, gradients, others)


def _weights(count: int, losses: Tensor) -> list[Tensor]:
    """Returns powers of two, shape (count,), in each pass: the digits of distinct numbers."""
    numbers = torch.randperm(count, device=losses.device)
    passes = max(1, math.ceil(math.log(count, EXPONENTS) - 1e-9))
    digits = [numbers // EXPONENTS**each % EXPONENTS for each in range(passes)]
    return [torch.exp2((digit - EXPONENTS // 2).to(losses.dtype)) for digit in digits]


def _unaliased(found: Sequence[Tensor | None]) -> Iterator[Tensor | None]:
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


def check_against(bare: BareRun, run: Run, *, precision: torch.dtype | None) -> CheckResult:
    """Returns how far it is proved that the clipped model's uses are the examples' own gradients.

    Args:
        bare: From ``bare_run``; its gradients are used up.
        run: Runs the clipped model, the same each time it is called.
        precision: What the model computes in under autocast, or None.

    Raises:
        NotExact: Losses, rows or sums are not those of the bare model.
    """
    plain, rest, shares = RecordedPass(), _Remainder(bare), bare.shares
    with gradients_kept(bare.others):
        losses = run(torch.ones_like(bare.losses), plain.note)
        passes = [RecordedPass() for _ in bare.weights]
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
            return CheckResult.FOR_NOW
    if not bool(finite.all()):
        return CheckResult.FOR_NOW
    rest.check_nothing_is_left(tolerance, half=half)
    everyone = plain.parameters_with_gradients() >= set(bare.gradients)
    return CheckResult.WHOLE if everyone else CheckResult.PARTLY


class _Remainder:
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
            NotExact: A parameter's uses do not add up to its gradient.
        """
        whole = torch.stack(list(self._sizes.values())).norm()
        small = []
        for name, left in self._left.items():
            rounding = torch.finfo(torch.bfloat16 if half else left.dtype).eps * ROUNDINGS
            size = self._sizes[name].clamp(min=LEAST_SHARE * whole)
            allowed = tolerance * size + rounding * self._norm_bounds[name]
            small.append(left.norm() <= allowed + torch.finfo(left.dtype).tiny)
        # one look at the device for all of them
        for name, is_small in zip(self._left, torch.stack(small).tolist(), strict=True):
            if not is_small:
                raise NotExact(f"what its layers record does not add up to the gradient of {name}")
