"""The interface of a clipping engine: from norms to clip factors to the clipped sum of a step.

Clipping styles turn gradient norms into the factors that gradients are scaled by. Each states its
sensitivity, the most one unit can move the sum of scaled gradients, and the noise is a multiple of
exactly that number.

The sum is added up over micro-batches without the error of adding them up. Leaving one record out
shifts every later record by a place, so that other micro-batches are added to other totals, and
float32 rounds otherwise at each addition. Over M micro-batches of n records that would move the sum
by up to ``eps M n C / 2``, more than the record itself may: records crafted so that each addition
loses half a unit in the last place were seen to move 8192 others, two at a time, by 0.67 C.
(Casacuberta et al. 2022, arXiv 2207.10635, show the same of other libraries.) So what each addition
loses is kept, and added with the next micro-batch (Knuth's two-sum). What is left does not grow
with M and is allowed for in the clip factors (``rounding_headroom``).

>>> sums, total = CompensatedSums(), torch.ones(1)
>>> for _ in range(4):
...     total = sums.add("weight", total, torch.full((1,), 2.0**-25))
...     sums.flush()
>>> float(total) == 1 + 2.0**-23  # plain float32 additions would leave 1
True
"""

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dpft.errors import InputError, RunError
from dpft.privacy.clipping.choices import Sums, Tuning, check_max_grad_norm, check_style_name
from dpft.privacy.clipping.squares import numbers_at_a_time
from dpft.privacy.clipping.trainable import TrainableParameters, is_summable

# A factor computed in floating point may exceed the true one by rounding; sixteen units in the
# last place cover the norm's own error (docs/design.md, the clipper).
GUARD_EPS = 16
STABILITY = 0.01
"""Constant of automatic clipping (Bu et al. 2022b, eq. 4.1), in units of the gradient norm."""

MOST_HEADROOM = 0.5
"""Largest share of the clipping norm that may be left for rounding."""


@dataclass(frozen=True, kw_only=True)
class ClippingStyle(ABC):
    """Turns per-example gradient norms into clip factors.

    Guarantees:
        For norms of every group in [0, inf), the root of the summed squares of ``norm * factor``
        over the groups is at most ``bound``, so that with the rounding of a step's sum one unit
        moves it by at most ``sensitivity``.
    """

    max_grad_norm: float
    headroom: float = 0.0
    """Share of the norm that factors leave for the rounding of the sum (``sums``)."""
    groups: int = 1
    """Groups that partition the trainable parameters; each has a norm and a factor of its own."""

    def __post_init__(self) -> None:
        check_max_grad_norm(self.max_grad_norm)
        if not 0 <= self.headroom <= MOST_HEADROOM:
            raise InputError(
                f"`headroom` must be from 0 to {MOST_HEADROOM}, got {self.headroom}; add up fewer "
                "examples in a step, whose float32 sums round too coarsely."
            )

    @property
    def bound(self) -> float:
        """Norm that gradients are scaled to: what the headroom leaves of ``max_grad_norm``."""
        return self.max_grad_norm * (1 - self.headroom)

    @property
    def sensitivity(self) -> float:
        """Most that one unit can move the clipped sum, in L2 norm over all groups together."""
        return self.max_grad_norm

    @abstractmethod
    def factors(self, norms: Tensor) -> Tensor:
        """Returns the factor of each gradient, of the shape of ``norms``, (…, b)."""

    @abstractmethod
    def least_norm(self, dtype: torch.dtype) -> float:
        """Returns a norm such that an error far below it moves no scaled gradient's norm."""


@dataclass(frozen=True, kw_only=True)
class Flat(ClippingStyle):
    """Abadi et al. 2016: scale by ``min(1, C / norm)``."""

    def factors(self, norms: Tensor) -> Tensor:
        """Returns ``min(1, C / (norm * (1 + 16 eps)))``; 1 at norm 0."""
        return torch.clamp(self.bound / _guarded(norms), max=1.0)

    def least_norm(self, dtype: torch.dtype) -> float:
        """Returns C: below it nothing is scaled."""
        return self.max_grad_norm


@dataclass(frozen=True, kw_only=True)
class Automatic(ClippingStyle):
    """AUTO-S (Bu et al. 2022b): scale by ``C / (norm + 0.01)``, so that every example counts."""

    def factors(self, norms: Tensor) -> Tensor:
        """Returns ``C / (norm * (1 + 16 eps) + 0.01)``."""
        return self.bound / (_guarded(norms) + STABILITY)

    def least_norm(self, dtype: torch.dtype) -> float:
        """Returns 0.01: below it all are scaled nearly alike."""
        return STABILITY


@dataclass(frozen=True, kw_only=True)
class AutomaticV(ClippingStyle):
    """AUTO-V (Bu et al. 2022b): scale by ``C / norm``, so that every gradient has norm C."""

    def factors(self, norms: Tensor) -> Tensor:
        """Returns ``C / (norm * (1 + 16 eps))``; 0 at norm 0, and where squares underflow.

        Below 1e-10 (float32) entries whose squares are lost, each below 1e-19, could hold a
        share of the norm that counts, in a model of 1e12 parameters.
        """
        floor = self.least_norm(norms.dtype)
        scaled = self.bound / _guarded(norms).clamp(min=floor)
        return torch.where(norms >= floor, scaled, torch.zeros_like(scaled))

    def least_norm(self, dtype: torch.dtype) -> float:
        """Returns 1e-10 (float32), below which a gradient is taken for zero."""
        floor: float = 1e9 * torch.finfo(dtype).tiny ** 0.5
        return floor


@dataclass(frozen=True, kw_only=True)
class PerLayer(ClippingStyle):
    """Flat clipping of each of K groups by itself, at ``C / sqrt(K)``.

    The groups partition the parameters, so the squares of K bounds ``C / sqrt(K)`` add up to C.
    """

    def factors(self, norms: Tensor) -> Tensor:
        """Returns ``min(1, C / sqrt(K) / (norm * (1 + 16 eps)))``, shape (K, b) like ``norms``."""
        bound = self.bound / math.sqrt(self.groups)
        return torch.clamp(bound / _guarded(norms), max=1.0)

    def least_norm(self, dtype: torch.dtype) -> float:
        """Returns ``C / sqrt(K)``: below it nothing is scaled."""
        return self.max_grad_norm / math.sqrt(self.groups)


STYLES: dict[str, type[ClippingStyle]] = {
    "flat": Flat,
    "automatic": Automatic,
    "automatic_v": AutomaticV,
    "per_layer": PerLayer,
}


def clipping_style(
    name: str, *, max_grad_norm: float, groups: int = 1, headroom: float = 0.0
) -> ClippingStyle:
    """Returns the style called ``name``, for ``groups`` groups where the style has groups.

    Raises:
        InputError: No such style, or ``max_grad_norm`` is not positive and finite.
    """
    check_style_name(name)
    count = groups if STYLES[name] is PerLayer else 1
    return STYLES[name](max_grad_norm=max_grad_norm, groups=count, headroom=headroom)


def in_range(factors: Tensor) -> Tensor:
    """Returns factors that float32 products with gradients can bear; none is larger than it was.

    A factor below the least normal number has lost digits and may be twice what it should be: it
    becomes 0. One above 1e12 (float32) could lift an input of 3e26 (``squares.LONGEST``) out of
    range, and a sum with it: it becomes 1e12.
    """
    info = torch.finfo(factors.dtype)
    return torch.where(factors < info.tiny, 0.0, factors.clamp(max=info.max / 3.4e26))


def _guarded(norms: Tensor) -> Tensor:
    return norms * (1 + GUARD_EPS * torch.finfo(norms.dtype).eps)


ROUNDINGS = 32
"""Roundings of the whole sum that the headroom allows for, see ``rounding_headroom``."""


@dataclass(frozen=True)
class _Addition:
    """What is to be added to a total, and what the last addition to it lost."""

    total: Tensor
    part: Tensor
    lost: Tensor | None


class CompensatedSums:
    """Adds micro-batches' sums to parameters' gradients, and keeps what each addition loses.

    From the second micro-batch of a step on it holds one more tensor of each trainable
    parameter's size. Additions wait for each other, so that those of many small parameters are
    one operation.

    Guarantees:
        After any number of additions the total is the exact sum of the parts, within
        ``eps * (|total| + sum of |part|)`` in each coordinate, to first order in eps (the
        distance from 1 to the next number, 1.2e-7 in float32).
    """

    def __init__(self) -> None:
        self._lost: dict[str, Tensor] = {}
        self._left: dict[str, tuple[weakref.ref[Tensor], int]] = {}
        self._waiting: dict[str, _Addition] = {}
        self._size = 0

    def add(self, name: str, total: Tensor | None, part: Tensor) -> Tensor:
        """Returns the total to which a micro-batch's part is added, in place, by ``flush``.

        Args:
            name: Name of the parameter whose gradient it is.
            total: What was added up before; None for nothing. If someone else changed it since,
                what its last addition lost is forgotten.
            part: Of the parameter's shape; it becomes the sums' own.
        """
        if name in self._waiting:
            self.flush()
        lost = self._lost.pop(name, None)
        if total is None:
            self._left[name] = (weakref.ref(part), part._version)
            return part
        if lost is not None:
            reference, version = self._left[name]
            if reference() is not total or total._version != version:
                lost = None
        self._waiting[name] = _Addition(total, part, lost)
        self._size += part.numel()
        if self._size >= numbers_at_a_time(part.device):
            self.flush()
        return total

    def flush(self) -> None:
        """Carries out the additions that wait."""
        waiting, self._waiting, self._size = self._waiting, {}, 0
        for bucket in _buckets(waiting.values()):
            _add_keeping_loss(bucket)
        for name, addition in waiting.items():
            self._lost[name] = addition.part
            self._left[name] = (weakref.ref(addition.total), addition.total._version)


def rounding_headroom(expected_batch_size: float, dtype: torch.dtype = torch.float32) -> float:
    """Returns the share of the clipping norm that clip factors leave for the sum's rounding.

    The two sums that a record's presence tells apart are each of at most n records of norm C,
    and each within ``eps n C`` of what its micro-batches gave: a total is rounded once, and a
    part once, by half of eps (``CompensatedSums``; ``sum of |part|`` is taken for ``n C``). That is
    4 roundings of ``eps / 2 * n C``. Sums over the rows of an embedding are taken in float64 and
    rounded once; gradients that are formed are rounded four times more in each of the two sums
    (``uses.sum_of_rows``), 8 in all. The other 28 are for those, or for the products of dense
    layers, which libraries add up in tiles, and for the forward and backward pass: no proof covers
    the latter two. Records crafted against the order of additions, the worst that were found, need
    28 in all (128 positions a micro-batch, which Intel's library adds up one after the other);
    aligned records at random needed less than one.

    n is the expected batch size and a margin that a Poisson draw exceeds with probability below
    1e-13: the draw itself is private.
    """
    most: float = expected_batch_size + 8 * expected_batch_size**0.5 + 32
    return ROUNDINGS * torch.finfo(dtype).eps / 2 * most


def _add_keeping_loss(bucket: Sequence[_Addition]) -> None:
    """Adds each part to its total, and leaves in it what rounding took (two-sum, exact)."""
    highs, lows = [each.total for each in bucket], [each.part for each in bucket]
    losts = [each.lost for each in bucket if each.lost is not None]
    if losts:
        torch._foreach_add_([each.part for each in bucket if each.lost is not None], losts)
    added = torch._foreach_add(highs, lows)
    share = torch._foreach_sub(highs, added)
    torch._foreach_add_(lows, share)
    torch._foreach_add_(share, added)
    torch._foreach_sub_(highs, share)
    torch._foreach_add_(lows, highs)
    torch._foreach_copy_(highs, added)


def _buckets(additions: Iterable[_Addition]) -> Iterator[list[_Addition]]:
    """Yields the additions in pieces and groups of about as many numbers as are added at a time."""
    bucket: list[_Addition] = []
    size = 0
    for addition in additions:
        most = numbers_at_a_time(addition.part.device)
        for piece in _pieces(addition, most):
            if bucket and size + piece.part.numel() > most:
                yield bucket
                bucket, size = [], 0
            bucket.append(piece)
            size += piece.part.numel()
    if bucket:
        yield bucket


def _pieces(addition: _Addition, most: int) -> Iterator[_Addition]:
    """Yields an addition as a few of at most so many numbers each, where its memory is in order."""
    tensors = [t for t in (addition.total, addition.part, addition.lost) if t is not None]
    if addition.part.numel() <= most or not all(tensor.is_contiguous() for tensor in tensors):
        yield addition
        return
    for total, part, *lost in zip(*(t.view(-1).split(most) for t in tensors), strict=True):
        yield _Addition(total, part, lost[0] if lost else None)


LossFunction = Callable[[], Tensor]
"""Computes per-example losses, shape (b,), with a graph back to the parameters."""


@dataclass(frozen=True)
class ClippedBatch:
    """What one accumulation says of its examples; all of it is private.

    Attributes:
        norms: Gradient norms before clipping, shape (b,), or (units,) where units were given;
            0 where the loss or the gradient was not finite.
        non_finite: How many examples (or units) were left out as not finite.
    """

    norms: Tensor
    non_finite: int


@dataclass(frozen=True)
class ClipDecision:
    """What the norms of a batch decide, before anything is summed; all of it is private.

    Attributes:
        norms: As in ``ClippedBatch``.
        factors: What each gradient is multiplied by, shape (groups, b or units); the loss scale
            is divided out here.
        finite: Which examples (or units) take part in the sum, shape (b or units,); the others
            are left out as not finite.
        non_finite: How many are left out.
        needs_recheck: Whether some norm cannot be believed and must be taken again.
        formed: By parameter, which examples' gradients are formed by themselves, (b or units,).
    """

    norms: Tensor
    factors: Tensor
    finite: Tensor
    non_finite: int
    needs_recheck: bool = False
    formed: Mapping[str, Tensor] = field(default_factory=dict)
    _known: dict[tuple[int, torch.dtype], Tensor] = field(default_factory=dict, repr=False)

    @property
    def everyone_is_finite(self) -> bool:
        """Whether all examples (or units) take part."""
        return self.non_finite == 0

    def factors_of(self, group: int, dtype: torch.dtype) -> Tensor:
        """Returns a group's factors, shape (b or units,)."""
        key = (group, dtype)
        if key not in self._known:
            self._known[key] = self.factors[group].to(dtype)
        return self._known[key]

    def clipped_batch(self) -> ClippedBatch:
        """Returns what an accumulation says of its batch: the norms, and how many are left out."""
        return ClippedBatch(norms=self.norms, non_finite=self.non_finite)


NEGLIGIBLE_SHARE = 1e-6
"""Share of a squared clipping norm that no bound depends on, all parameters together."""


class Engine(ABC):
    """Adds the clipped sum of a batch to the gradients of the trainable parameters."""

    def __init__(
        self,
        model: nn.Module,
        style: ClippingStyle,
        *,
        groups: Mapping[str, int] | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        """Prepares for a model.

        Args:
            model: Its trainable parameters are those that require grad now.
            style: From norms to factors.
            groups: Group number of every trainable parameter by name, ``style.groups`` of them;
                None where the style has one.
            tuning: Speed and memory.

        Raises:
            InputError: The model has no trainable parameter, or one in half precision.
        """
        self.model = model
        self.style = style
        self.tuning = tuning or Tuning()
        shards = self.tuning.shards
        self.trainable = TrainableParameters(model, None if shards is None else shards.unsharded)
        parameters = self.trainable.now()
        if not parameters:
            raise InputError("the model must have a trainable parameter, got none.")
        for name, parameter in parameters.items():
            if not is_summable(parameter):
                raise InputError(
                    f"trainable parameter {name} must be float32 or float64, got "
                    f"{parameter.dtype}; load the model in float32."
                )
        self.groups = dict.fromkeys(parameters, 0) if groups is None else dict(groups)
        parameter = next(iter(parameters.values()))
        sums = None if shards is None else shards.new_sums()
        self.sums: Sums = sums or CompensatedSums()
        self.norm_dtype = torch.promote_types(parameter.dtype, torch.float32)
        """What norms and factors are given in."""
        self._parameters = len(parameters)

    @property
    def negligible(self) -> float:
        """A parameter's squared norm (of scaled losses) that changes no factor."""
        least = self.style.least_norm(self.norm_dtype) * self.tuning.scale
        return NEGLIGIBLE_SHARE * least**2 / self._parameters

    def check_unchanged(self) -> None:
        """Refuses a model whose trainable parameters are not those it was prepared with.

        Raises:
            RunError: A parameter was frozen, unfrozen or replaced since; another tensor of the
                same shape in its place is no replacement, as long as what was tied stays tied.
        """
        changed = self.trainable.first_changed()
        if changed is not None:
            raise RunError(
                f"the trainable parameters must stay those the clipper was made for, but "
                f"{changed} was frozen, unfrozen or replaced; make a new one."
            )

    @abstractmethod
    def install(self) -> None:
        """Makes the model ready for ``accumulate``."""

    @abstractmethod
    def remove(self) -> None:
        """Makes the model what it was before ``install``."""

    @abstractmethod
    def compute(self, compute_losses: LossFunction, units: Tensor | None = None) -> Tensor:
        """Returns the losses; an engine may call ``compute_losses`` again, to prove them.

        Args:
            compute_losses: As ``PerExampleClipper.accumulate`` takes it.
            units: Privacy unit of each row of the model's calls, or None.
        """

    @abstractmethod
    def accumulate(self, losses: Tensor, units: Tensor | None) -> ClippedBatch:
        """Adds sum over i of ``C_i * gradient[i]`` to every trainable parameter's ``grad``.

        Args:
            losses: Per-example losses, shape (b,), b at least 1.
            units: Privacy unit of each row, shape (b,), or None where each row is its own.
        """

    def new_squares(self, count: int) -> Tensor:
        """Returns zeros for squared norms, shape (groups, count), float64.

        The square of a gradient that float32 holds need not fit into float32.
        """
        device = self.trainable.device
        return torch.zeros(self.style.groups, count, dtype=torch.float64, device=device)

    def decide_clipping(
        self, squares: Tensor, finite: Tensor, doubt: Tensor | None = None
    ) -> ClipDecision:
        """Returns which examples take part in the sum, and by what factor each is scaled.

        The one look at the device that an accumulation needs is here.

        Args:
            squares: Of the gradients of the scaled losses, shape (groups, b or units).
            finite: Which losses are finite, shape (b or units,).
            doubt: Whether some square cannot be believed, to be looked at as well.
        """
        scale = self.tuning.scale
        # Rounding may leave a square that does not matter below zero; its root would be NaN, and
        # a NaN factor would spoil every example's sum.
        squares = squares.clamp(min=0)
        norms = (squares.sum(0).sqrt() / scale).to(self.norm_dtype)
        finite = finite & norms.isfinite()
        squares = torch.where(finite, squares, 0.0)
        factors = self.style.factors((squares.sqrt() / scale).to(self.norm_dtype)) / scale
        norms = torch.where(finite, norms, 0.0)
        left_out = finite.logical_not().sum()
        looked_at = [left_out] if doubt is None else [left_out, doubt.to(left_out.dtype)]
        non_finite, *doubted = torch.stack(looked_at).tolist()
        return ClipDecision(
            norms, in_range(factors), finite, non_finite, needs_recheck=any(doubted)
        )


def check_is_tensor(losses: object) -> None:
    """Refuses losses that are no tensor, such as ``loss.item()``.

    Raises:
        InputError: They are something else.
    """
    if not isinstance(losses, Tensor):
        raise InputError(
            f"losses must be a tensor of shape (b,), one per example, got {type(losses).__name__}."
        )


def is_a_list(losses: object) -> bool:
    """Whether losses are a tensor of one dimension; what is not is refused by ``check_losses``."""
    return isinstance(losses, Tensor) and losses.dim() == 1


def check_losses(losses: Tensor) -> None:
    """Refuses losses that are not one per example with a graph.

    Raises:
        InputError: Wrong shape, already reduced, or without a graph.
    """
    if losses.dim() != 1:
        raise InputError(
            f"losses must have shape (b,), one per example, got {tuple(losses.shape)}; "
            "do not reduce over the batch."
        )
    if not losses.requires_grad:
        raise InputError(
            "losses must require grad, got losses without a graph; compute them with gradients "
            "enabled from the clipped model."
        )


def check_are_units(units: object) -> None:
    """Refuses what is no list of whole numbers.

    Raises:
        InputError: ``units`` is something else.
    """
    if not isinstance(units, Tensor) or units.is_floating_point() or units.dim() != 1:
        raise InputError("units must be a tensor of whole numbers, one unit per row.")


def check_units(units: Tensor, losses: int) -> None:
    """Refuses units that fit neither a loss for each row nor a loss for each unit.

    Raises:
        InputError: There are more or fewer losses.
    """
    check_are_units(units)
    if losses not in (len(units), len(units.unique())):
        raise InputError(
            f"units must have shape ({losses},), one unit per row, or name {losses} units, one per "
            f"loss, got shape {tuple(units.shape)}."
        )
