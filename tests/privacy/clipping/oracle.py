"""Single-example execution by ordinary autograd: the definition that all tests here compare with.

The clipper may shorten a clip factor by its bound on rounding, and may never lengthen one. So sums
are compared up to factors: ``distance`` finds the factors that fit a sum best, and returns how far
the sum is from every sum with factors that are allowed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from dpft.privacy.clipping import PerExampleClipper

LossesOf = Callable[[nn.Module, Any], Tensor]
"""(model, batch) -> per-example losses, shape (b,)."""
Gradients = dict[str, Tensor]

ENGINES = ("book_keeping", "rows", "auto")
STYLES = ("flat", "automatic", "automatic_v", "per_layer")
TOLERANCE = 1e-5
SHORTENING = 2e-3
"""Largest share by which a clip factor may be smaller than its closed form, for short sequences."""


def rows_of(batch: Any, rows: slice | Sequence[int] | Tensor) -> Any:
    """Return a batch of some rows of a batch, not sharing memory with it."""
    index = rows if isinstance(rows, slice | Tensor) else list(rows)
    return tree_map(lambda leaf: leaf[index].clone() if isinstance(leaf, Tensor) else leaf, batch)


def row_count(batch: Any) -> int:
    """Return the leading dimension of a batch's first tensor."""
    return next(len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))


@dataclass(frozen=True)
class UnitGradients:
    """Gradients of u units, each executed separately.

    Attributes:
        gradients: One dictionary per unit; float64.
        losses: Shape (b,).
    """

    gradients: Sequence[Gradients]
    losses: Tensor

    @property
    def norms(self) -> Tensor:
        """Norms over all parameters, shape (u,), float64."""
        return torch.stack([total_norm(gradient) for gradient in self.gradients])

    def median_norm(self) -> float:
        """Return a clipping norm that about half of the units exceed."""
        norms = self.norms.sort().values
        middle = float(norms[(len(norms) - 1) // 2])
        return middle if 0 < middle < math.inf else 1.0

    def joined(self, other: "UnitGradients") -> "UnitGradients":
        """Return the units of two micro-batches."""
        losses = torch.cat([self.losses, other.losses])
        return UnitGradients([*self.gradients, *other.gradients], losses)

    def without(self, *units: int) -> "UnitGradients":
        """Return gradients in which some units contribute zero."""
        zeros = {name: torch.zeros_like(g) for name, g in self.gradients[0].items()}
        kept = [zeros if k in units else g for k, g in enumerate(self.gradients)]
        return UnitGradients(kept, self.losses)


def gradient_of(model: nn.Module, loss: Tensor, *, retain_graph: bool = False) -> Gradients:
    """Return the gradient of one loss in float64, for every trainable parameter."""
    model.zero_grad()
    if loss.requires_grad:
        loss.backward(retain_graph=retain_graph)
    found = gradients_of(model)
    model.zero_grad()
    return {name: gradient.double() for name, gradient in found.items()}


def unit_gradients(
    model: nn.Module,
    losses_of: LossesOf,
    batch: Any,
    rows_per_unit: int = 1,
    alone: Sequence[Any] | None = None,
) -> UnitGradients:
    """Execute each unit separately through the unmodified model.

    Args:
        model: The model; left without gradients.
        losses_of: The per-example losses.
        batch: The micro-batch.
        rows_per_unit: Rows of each unit.
        alone: For each unit, a batch of its rows only, such as unpadded ones; by default the
            rows of ``batch``.
    """
    size = rows_per_unit
    units = [slice(start, start + size) for start in range(0, row_count(batch), size)]
    gradients, losses = [], []
    for unit, rows in enumerate(units):
        own = rows_of(batch, rows) if alone is None else alone[unit]
        found = losses_of(model, own)
        losses.append(found.detach())
        gradients.append(gradient_of(model, found.sum()))
    return UnitGradients(gradients, torch.cat(losses))


def batch_gradients(
    model: nn.Module, losses_of: LossesOf, batch: Any, *, seed: int
) -> UnitGradients:
    """Execute all rows in one forward pass, whose dropout masks follow from ``seed``.

    The gradients are those of single rows only if rows do not mix.
    """
    torch.manual_seed(seed)
    losses = losses_of(model, batch)
    gradients = [gradient_of(model, loss, retain_graph=True) for loss in losses]
    return UnitGradients(gradients, losses.detach())


def total_norm(gradients: Mapping[str, Tensor]) -> Tensor:
    """Return the norm of all gradients together, float64."""
    return torch.stack([g.detach().double().norm() for g in gradients.values()]).norm()


def gradients_of(model: nn.Module) -> Gradients:
    """Return copies of ``grad``, dense, zeros if a trainable parameter has none."""
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.to_dense().clone()
        for name, p in model.named_parameters()
        if p.requires_grad or p.grad is not None
    }


@dataclass(frozen=True)
class Clipped:
    """What the clipper returned for some micro-batches.

    Attributes:
        norms: Norms of all units, shape (u,).
        gradients: The sum that is in ``grad`` afterwards.
        choice: What the self-check returned.
        non_finite: Units that were left out.
    """

    norms: Tensor
    gradients: Gradients
    choice: Any = None
    non_finite: int = 0

    def minus(self, other: "Clipped") -> float:
        """Return the norm of the difference of two sums."""
        pairs = {n: g.double() - other.gradients[n].double() for n, g in self.gradients.items()}
        return float(total_norm(pairs))


def clipped(
    model: nn.Module,
    losses_of: LossesOf,
    batches: Sequence[Any],
    max_grad_norm: float = 0.5,
    *,
    synthetic: Sequence[Any] | None = None,
    alone: Sequence[Sequence[Any]] | None = None,
    rows_per_unit: int = 1,
    seed: int | None = None,
    **options: Any,
) -> Clipped:
    """Accumulate some micro-batches after a self-check.

    Args:
        model: The model; what ``grad`` held is removed first.
        losses_of: The per-example losses.
        batches: The micro-batches.
        max_grad_norm: C.
        synthetic: Batches of the self-check; by default rows of the first micro-batch.
        alone: The rows of ``synthetic``, each collated separately.
        rows_per_unit: Rows of each unit.
        seed: Seed that is set before each micro-batch.
        options: Other arguments of the clipper.
    """
    if synthetic is None:
        whole = row_count(batches[0]) // rows_per_unit
        counts = [min(units, whole) * rows_per_unit for units in (4, 3)]
        synthetic = [rows_of(batches[0], slice(count)) for count in counts]
    model.zero_grad()
    with PerExampleClipper(model, losses_of, max_grad_norm, **options) as clipper:
        choice = clipper.self_check(*synthetic, alone=alone, rows_per_unit=rows_per_unit)
        norms = []
        for batch in batches:
            if seed is not None:
                torch.manual_seed(seed)
            norms.append(clipper.accumulate(batch, rows_per_unit=rows_per_unit))
        left_out = clipper.non_finite
    return Clipped(torch.cat(norms), gradients_of(model), choice, left_out)


def clip_factor(
    norm: float, max_grad_norm: float, clipping: str = "flat", groups: int = 1
) -> float:
    """Return the closed form of a clip factor."""
    if clipping == "automatic":
        return max_grad_norm / (norm + 0.01)
    if norm == 0:
        return 0.0 if clipping == "automatic_v" else 1.0
    limit = max_grad_norm / math.sqrt(groups)
    return limit / norm if clipping == "automatic_v" else min(1.0, limit / norm)


def distance(
    got: Clipped,
    expected: UnitGradients,
    max_grad_norm: float,
    *,
    clipping: str = "flat",
    groups: Mapping[str, int] | None = None,
    shortening: float = SHORTENING,
) -> float:
    """Return the relative error of norms and of the sum.

    Args:
        got: What the clipper returned.
        expected: Single-example execution.
        max_grad_norm: C.
        clipping: The clipping style.
        groups: For per-layer clipping, the number of each parameter's group.
        shortening: Largest share by which a clip factor may be smaller than its closed form.
    """
    norms = expected.norms
    if got.norms.shape != norms.shape:
        return math.inf
    scale = norms.clamp(min=1e-3 * float(norms.max())).clamp(min=1e-30)
    error = float(((got.norms.double() - norms).abs() / scale).max())
    number = groups or dict.fromkeys(expected.gradients[0], 0)
    count, residuals, sums = max(number.values()) + 1, [], []
    for group in range(count):
        names = [name for name, of in number.items() if of == group]
        columns = torch.stack([flat(g, names) for g in expected.gradients], 1)
        lengths = columns.norm(dim=0)
        factors = torch.tensor(
            [clip_factor(float(n), max_grad_norm, clipping, count) for n in lengths],
            dtype=torch.float64,
        )
        total = columns @ factors
        apart = flat(got.gradients, names) - total
        directions = columns / lengths.clamp(min=1e-300)
        fitted = torch.linalg.pinv(directions.T @ directions, rtol=1e-2, hermitian=True) @ (
            directions.T @ apart
        )
        changes = fitted / (factors * lengths).clamp(min=1e-3 * float(total.norm()) + 1e-300)
        error = max(error, float(changes.max()), float((-changes.min() - shortening).clamp(min=0)))
        residuals.append((apart - directions @ fitted).norm())
        sums.append(total.norm())
    whole = torch.stack(sums).norm().clamp(min=1e-6 * max_grad_norm)
    return max(error, float(torch.stack(residuals).norm() / whole))


def flat(gradients: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """Return some parameters' gradients as one float64 vector."""
    return torch.cat([gradients[name].detach().double().flatten() for name in names])


def assert_exact(
    model: nn.Module,
    losses_of: LossesOf,
    batch: Any,
    *,
    tolerance: float = TOLERANCE,
    rows_per_unit: int = 1,
    alone: Sequence[Any] | None = None,
    max_grad_norm: float | None = None,
    **options: Any,
) -> Clipped:
    """Assert that a micro-batch's norms and clipped sum are those of single-example execution.

    Returns what the clipper returned. ``options`` are those of ``clipped``.
    """
    expected = unit_gradients(model, losses_of, batch, rows_per_unit, alone)
    norm = expected.median_norm() if max_grad_norm is None else max_grad_norm
    got = clipped(model, losses_of, [batch], norm, rows_per_unit=rows_per_unit, **options)
    style = options.get("clipping", "flat")
    error = distance(got, expected, norm, clipping=style)
    assert error <= tolerance, f"relative error {error:.1e}"
    return got
