"""The interface of an engine, the step from norms to factors, and the checks all engines share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dpft.errors import InputError, RunError
from dpft.privacy.clipping.choices import Sums, Tuning
from dpft.privacy.clipping.factors import ClippingStyle, in_range
from dpft.privacy.clipping.sums import CompensatedSums
from dpft.privacy.clipping.trainable import TrainableParameters, is_summable

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
