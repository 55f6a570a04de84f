"""The two clipping engines: all units in one backward pass, or each unit separately."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpft.errors import InputError, RunError
from dpft.privacy.clipping.assignment import Assignment
from dpft.privacy.clipping.batches import take_rows
from dpft.privacy.clipping.options import NORM_RANGE, LossFunction
from dpft.privacy.clipping.parameters import Parameters
from dpft.privacy.clipping.recorder import Recorder, UseError
from dpft.privacy.clipping.styles import ClippingStyle, Flat

GRADIENT_WRITTEN = (
    "losses_of wrote to a parameter's grad. Do not call backward or assign to grad in losses_of;"
    " add penalties to the losses instead."
)


def check_losses(losses: object, rows: int) -> None:
    """Reject losses that do not contain one loss per row.

    Raises:
        InputError: The losses have another shape, or are not a tensor.
    """
    if not isinstance(losses, Tensor) or losses.shape != (rows,):
        # The message contains no sizes, because those of a micro-batch of records are private.
        kind = f"{losses.dim()} dimensions" if isinstance(losses, Tensor) else type(losses).__name__
        raise InputError(
            "losses_of must return per-example losses of shape (b,), one for each row of the batch,"
            f" got {kind} or the wrong length. Do not reduce over the batch.",
            key="losses_of",
        )


@dataclass(frozen=True)
class Clipped:
    """Norms and clip factors of one micro-batch of u units; private.

    Attributes:
        norms: Gradient norms over all groups, shape (u,), float64; not finite if the unit's
            gradient is not.
        bounds: Upper bounds of the norms, shape (groups, u), float64.
        factors: Clip factors, shape (groups, u), float64; 0 for skipped units.
        losses: Per-example losses, shape (b,).
        finite: Whether each unit's loss and gradient are finite, so that the unit contributes to
            the sum, shape (u,).
        non_finite: Number of skipped units.
    """

    norms: Tensor
    bounds: Tensor
    factors: Tensor
    losses: Tensor
    finite: Tensor
    non_finite: int


@dataclass(frozen=True)
class MicroBatch:
    """The rows of one micro-batch.

    Attributes:
        batch: A pytree of tensors with a leading dimension of ``rows``.
        rows: Number of rows.
        units: Number of privacy units, each ``rows / units`` contiguous rows.
    """

    batch: Any
    rows: int
    units: int


class Engine:
    """Base class with the common parts of the two engines.

    Attributes:
        loss_scale: Factor of the losses in the backward pass; results are divided by this factor.
        autocast: The dtype of autocast around ``losses_of``; None for no autocast.
    """

    def __init__(self, model: nn.Module, parameters: Parameters, losses_of: LossFunction) -> None:
        self._model, self._parameters, self._losses_of = model, parameters, losses_of
        self.loss_scale = 1.0
        self.autocast: torch.dtype | None = None

    def losses(self, batch: Any, rows: int) -> Tensor:
        """Return the per-example losses, with a graph if they depend on a trainable parameter.

        Raises:
            InputError: There is not one loss per row.
            RunError: A gradient was written while the losses were computed.
        """
        with torch.enable_grad():
            losses = self.call_losses_of(batch)
        if any(p.grad is not None for p in self._parameters.now().values()):
            raise RunError(GRADIENT_WRITTEN)
        check_losses(losses, rows)
        return losses

    def call_losses_of(self, batch: Any) -> Tensor:
        """Return the result of ``losses_of`` under autocast, unchecked."""
        device = self._parameters.device.type
        with torch.autocast(device, dtype=self.autocast, enabled=self.autocast is not None):
            return self._losses_of(self._model, batch)

    def _backward(self, losses: Tensor) -> None:
        total = losses.sum()
        (total if self.loss_scale == 1 else total * self.loss_scale).backward()


class BookKeeping(Engine):
    """Engine with one forward and backward pass for all rows and one contraction per parameter.

    Book-keeping: Bu et al. 2023 (arXiv 2210.00038). Ghost norms: Li et al. 2022 (arXiv 2110.05679).
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Parameters,
        losses_of: LossFunction,
        groups: Mapping[str, int],
    ) -> None:
        super().__init__(model, parameters, losses_of)
        self.recorder = Recorder(groups, parameters.device)
        self.assignment: Assignment | None = None
        self._sizes = {name: shape.numel() for name, shape in parameters.shapes.items()}

    def run(self, micro_batch: MicroBatch, style: ClippingStyle) -> Clipped:
        """Compute norms and clip factors of one micro-batch; ``sums`` then computes its sum.

        If a parameter has an ordinary ``grad`` after the backward pass, the parameter was used
        outside its layer, and this use was not recorded.

        Raises:
            UseError: A parameter's gradients cannot be recorded as assigned.
            InputError: See ``losses``.
        """
        assert self.assignment is not None
        recorder = self.recorder
        recorder.begin(micro_batch.rows, micro_batch.units)
        try:
            with self._parameters.grads_set_aside():
                with self.assignment.installed():
                    losses = self.losses(micro_batch.batch, micro_batch.rows)
                    if recorder.has_uses:
                        raise UseError("losses_of itself computed gradients", [])
                    if not losses.requires_grad:
                        raise UseError("losses do not depend on a trainable parameter", [])
                    self._backward(losses)
                stray = list(self._parameters.take_grads())
            if stray:
                raise UseError(
                    f"parameter {stray[0]} was used outside its layer's forward, in the loss or by"
                    " another module",
                    stray,
                    outside=True,
                )
            with torch.no_grad():
                return self._measured(losses.detach(), style)
        except BaseException:
            recorder.begin(0, 0)
            raise

    def _measured(self, losses: Tensor, style: ClippingStyle) -> Clipped:
        """Return norms and clip factors of the recorded uses."""
        squares, bounds = self.recorder.norms()
        norms, bounds = self._unscaled(squares.sum(0).sqrt()), self._unscaled(bounds.sqrt())
        # A unit is skipped if its loss or one of its bounds is not finite: this sum is then not
        # finite.
        of_losses = losses.view(len(norms), -1).abs().sum(1, dtype=torch.float64)
        finite = of_losses + bounds.sum(0) < math.inf
        factors = style.factors(bounds) * finite  # factors are finite even if bounds are not
        non_finite = len(norms) - int(finite.sum())  # the only host read
        return Clipped(norms, bounds, factors, losses, finite, non_finite)

    def _unscaled(self, values: Tensor) -> Tensor:
        return values if self.loss_scale == 1 else values / self.loss_scale

    def sums(self, clipped: Clipped, factors: Tensor | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yield the clipped sum of each parameter that was used, and forget the uses.

        Args:
            clipped: The result of the last ``run``.
            factors: Clip factors to use instead, shape (groups, u). A check can then compare the
                sums with those of another engine, whose bounds differ.
        """
        factors = clipped.factors if factors is None else factors
        keep = clipped.finite if clipped.non_finite else None
        shapes = self._parameters.shapes
        with torch.no_grad():
            factors = self._unscaled(factors)
            for name, part in self.recorder.weighted_sums(factors, keep, self._sizes):
                yield name, part if part.shape == shapes[name] else part.view(shapes[name])
        self.recorder.begin(0, 0)


class Rows(Engine):
    """Engine for single-example execution: each unit separately through the unmodified model.

    This execution defines the clipped sum. Rows cannot mix, except through state that the model
    keeps between forward passes. The engine needs the memory of a micro-batch with one unit.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Parameters,
        losses_of: LossFunction,
        groups: Mapping[str, int],
    ) -> None:
        super().__init__(model, parameters, losses_of)
        self._groups, self._count = groups, max(groups.values()) + 1
        self._sums: dict[str, Tensor] = {}

    def run(self, micro_batch: MicroBatch, style: ClippingStyle) -> Clipped:
        """Compute norms, clip factors and sums of one micro-batch; ``sums`` returns the sums.

        Raises:
            InputError: See ``losses``.
        """
        rows_per_unit = micro_batch.rows // micro_batch.units
        starts = range(0, micro_batch.rows, rows_per_unit)
        parts = [take_rows(micro_batch.batch, slice(at, at + rows_per_unit)) for at in starts]
        return self.run_units(parts, style, rows_per_unit)

    @property
    def has_sums(self) -> bool:
        """Whether a loss of the last run depended on a trainable parameter."""
        return bool(self._sums)

    def sums(self, clipped: Clipped) -> Iterator[tuple[str, Tensor]]:
        """Yield the clipped sum of each parameter that was used in the last run."""
        while self._sums:
            yield self._sums.popitem()

    def run_units(
        self,
        units: Sequence[Any],
        style: ClippingStyle | None,
        rows: int,
        *,
        adds: bool = True,
    ) -> Clipped:
        """Clip units, each a separate batch.

        Args:
            units: The batch of each unit.
            style: Style that computes the clip factors. None: flat clipping at the norm of the
                first unit, so that some of the units in a check are scaled down.
            rows: Number of rows of each unit.
            adds: Whether to compute the sum, or only norms.
        """
        sums: dict[str, Tensor] = {}
        norms, bounds, factors, losses, finite = [], [], [], [], []
        for batch in units:
            unit_losses, grads = self._gradients(batch, rows)
            losses.append(unit_losses)
            with torch.no_grad():
                norm = self._group_norms(grads)
                norms.append(norm.square().sum().sqrt())
                # Additions of later units also round this unit's contribution (norm-bound.md, 25).
                bounds.append(norm * (1 + (SPAN + len(units) + 8) * 2.0**-24))
                if style is None:
                    limit = min(max(float(norms[0]), NORM_RANGE[0]), NORM_RANGE[1])
                    style = Flat(max_grad_norm=limit if math.isfinite(limit) else 1.0)
                factor = style.factors(bounds[-1].unsqueeze(1)).squeeze(1)
                is_finite = unit_losses.isfinite().all() & norm.isfinite().all()
                finite.append(is_finite)
                factors.append(torch.where(is_finite, factor, 0.0))
                scales = factors[-1].tolist()  # the only host read
                if adds:
                    self._add(sums, grads, scales)
            del grads  # before the next unit needs as much memory
        if adds:
            self._sums = sums
        kept = torch.stack(finite)
        return Clipped(
            norms=torch.stack(norms),
            bounds=torch.stack(bounds, 1),
            factors=torch.stack(factors, 1),
            losses=torch.cat(losses),
            finite=kept,
            non_finite=len(kept) - int(kept.sum()),
        )

    def _gradients(self, batch: Any, rows: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the losses of a unit, and the gradients of their sum by name."""
        with self._parameters.grads_set_aside():
            losses = self.losses(batch, rows)
            if losses.requires_grad:  # A record with nothing to learn has a zero gradient.
                self._backward(losses)
            grads = self._parameters.take_grads()
        grads = {name: g.to_dense() if g.is_sparse else g for name, g in grads.items()}
        return losses.detach(), grads

    def _group_norms(self, grads: Mapping[str, Tensor]) -> Tensor:
        """Return the norm of each group, shape (groups,), float64."""
        by_group: list[list[Tensor]] = [[] for _ in range(self._count)]
        for name, gradient in grads.items():
            by_group[self._groups[name]].append(gradient)
        device = self._parameters.device
        return torch.stack([norm_of(group, device) for group in by_group]) / self.loss_scale

    def _add(self, sums: dict[str, Tensor], grads: dict[str, Tensor], factors: list[float]) -> None:
        """Add factor times gradient to the sums; a parameter's first gradient becomes its sum."""
        for group, factor in enumerate(factors):
            if factor == 0:
                continue
            scale = factor / self.loss_scale
            names = [name for name in grads if self._groups[name] == group]
            first = [grads[name] for name in names if name not in sums]
            summed = [name for name in names if name in sums]
            if summed:
                torch._foreach_add_(
                    [sums[name] for name in summed], [grads[name] for name in summed], alpha=scale
                )
            if first:
                torch._foreach_mul_(first, scale)
                sums.update({name: grads[name] for name in names if name not in sums})


SPAN = 64
"""Number of squares that are added in float32, before float64 adds the rest (norm-bound.md, 25)."""
SAFE_NORMS = (1e-10, 1e15)
"""Range of norms for which no relevant square underflows or overflows in float32."""


def norm_of(gradients: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return the norm of a unit's gradients, float64; relative error ``(SPAN / 2 + 2) * 2^-24``."""
    if not gradients:
        return torch.zeros((), dtype=torch.float64, device=device)
    norm = torch.stack([_square(g, torch.float32) for g in gradients]).sum().sqrt()
    if SAFE_NORMS[0] <= float(norm) <= SAFE_NORMS[1]:
        return norm
    return torch.stack([_square(g, torch.float64) for g in gradients]).sum().sqrt()


def _square(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sum of squares as float64; squares are computed in ``dtype`` or better."""
    flat = gradient.reshape(-1)
    dtype = torch.promote_types(dtype, gradient.dtype)
    whole = flat.numel() // SPAN * SPAN
    parts = [flat[:whole].view(-1, SPAN), flat[whole:].unsqueeze(0)]
    norms = [torch.linalg.vector_norm(p, dim=1, dtype=dtype).double() for p in parts if p.numel()]
    if not norms:
        return torch.zeros((), dtype=torch.float64, device=gradient.device)
    return torch.cat(norms).square().sum()
