"""No record contributes more than C, whatever its operands are: crafted records, exact norms.

``make fuzz`` tries 10,000 records (``DPFT_FUZZ_RECORDS``); the fast suite tries a sample of them.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from dpft.privacy.clipping import products
from dpft.privacy.clipping.products import (
    GradientNorms,
    Lookup,
    Outer,
    formed_norms,
    formed_weighted_sum,
    formed_without,
    outer_norms,
    rounded_down,
    tied_norms,
    weighted_sums,
)
from tests.privacy.clipping.crafted import (
    DTYPES,
    crafted,
    crafted_lookup,
    crafted_outer,
    crafted_sizes,
    exact_lookup,
    exact_outer,
    norm,
)
from tests.slowness import slow_but_every

RECORDS = int(os.environ.get("DPFT_FUZZ_RECORDS", "400"))
CHUNKS = 8
ROUNDING_OF_CHECK = 1 + 2.0**-48
"""Relative error of an exact norm, and of the product of a factor and C."""


@dataclass
class Case:
    """Crafted uses of one weight, and what they add.

    Attributes:
        norms: Their norms.
        dtype: Dtype in which their products are added up.
        outer: A linear layer's use.
        lookup: An embedding's use.
        formed: Gradients that are given themselves, shape (u, n).
    """

    norms: GradientNorms
    dtype: torch.dtype
    outer: Outer | None = None
    lookup: Lookup | None = None
    formed: Tensor | None = None

    def sums(self, factors: Tensor, keep: Tensor) -> Tensor:
        """Return what is added for the units in ``keep``, flat, with its own rounding."""
        parts = []
        if self.outer is not None:
            parts.append(next(weighted_sums([self.outer.without(keep)], factors))[1])
        if self.lookup is not None:
            parts.append(self.lookup.without(keep).weighted_sum(factors))
        if self.formed is not None:
            parts.append(formed_weighted_sum(formed_without(self.formed, keep), factors))
        return (parts[0] if len(parts) == 1 else parts[0] + parts[1]).flatten()

    def exact_entries(self, unit: int) -> list[float]:
        """Return the entries of one unit's gradient."""
        if self.formed is not None:
            return self.formed[unit].double().tolist()
        entries: list[float] = []
        if self.outer is not None:
            entries = exact_outer(self.outer.left[unit], self.outer.right[unit])
        if self.lookup is None:
            return entries
        looked_up = exact_lookup(self.lookup, unit)
        return [a + b for a, b in zip(entries, looked_up, strict=True)] if entries else looked_up


def crafted_case(kind: str, dtype: torch.dtype, generator: torch.Generator) -> Case:
    u, t, p, d = crafted_sizes(generator)
    wide = torch.promote_types(dtype, torch.float32)
    if dtype == torch.float64:
        t, p, d = min(t, 12), min(p, 12), min(d, 12)
    if kind == "lookup":
        lookup = crafted_lookup(u, t, min(p, 12), min(d, 12), dtype, generator)
        return Case(lookup.norms(), wide, lookup=lookup)
    if kind == "formed":
        formed = products.widened(crafted(u, (1, p * min(d, 20)), dtype, generator).squeeze(1))
        return Case(formed_norms(formed), wide, formed=formed)
    outer = crafted_outer(u, t, p, d, dtype, generator)
    if kind == "outer":
        return Case(outer_norms([outer]).of(0), wide, outer)
    lookup = crafted_lookup(u, t, p, d, dtype, generator)
    if torch.randint(0, 2, (), generator=generator):  # the two gradients cancel
        lookup.values = outer.right.clone()
        outer.left = -torch.nn.functional.one_hot(lookup.ids, p).to(dtype)
    norms = tied_norms(outer_norms([outer]).of(0), lookup.norms(), outer, lookup)
    return Case(norms, wide, outer, lookup)


def clip_factors(bounds: Tensor, max_grad_norm: float, style: str) -> Tensor:
    """Return the factors of a style for upper bounds of norms, shape (u,), float64."""
    if style == "flat":
        factors = (max_grad_norm / bounds).clamp(max=1.0)
    elif style == "automatic":
        factors = max_grad_norm / (bounds + 0.01)
    else:
        factors = (max_grad_norm / bounds).where(bounds >= 1e-10, 0.0)
    return factors.where(bounds.isfinite(), 0.0)


def contributions(case: Case, bounds: Tensor, max_grad_norm: float, style: str) -> Iterator[float]:
    """Yield norms of what single units add, in units of C: exactly, and as it is rounded."""
    factors = clip_factors(bounds, max_grad_norm, style)
    rounded = rounded_down(factors, case.dtype).double()
    for unit in range(len(bounds)):
        if not bool(bounds[unit].isfinite()):
            continue
        keep = torch.arange(len(bounds)) == unit
        alone = norm(case.sums(factors.where(keep, 0.0), keep).double().tolist())
        exact = norm(case.exact_entries(unit)) * float(rounded[unit])
        yield max(alone, exact) / max_grad_norm


def cases(seed: int, count: int) -> Iterator[tuple[Case, float, str]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        pick = torch.randint(0, 2**30, (3,), generator=generator).tolist()
        kind = ("outer", "outer", "lookup", "tied", "formed")[pick[0] % 5]
        style = ("flat", "flat", "automatic", "automatic_v")[pick[1] % 4]
        case = crafted_case(kind, DTYPES[pick[2] % 4], generator)
        finite = case.norms.bounds().isfinite().nonzero().flatten().tolist()
        length = norm(case.exact_entries(finite[0])) if finite else 0.0
        # Most records are clipped by little; the factors of some are denormal in float32.
        exponent = 4 * float(torch.rand((), generator=generator)) + (40 if pick[1] % 8 == 0 else 0)
        yield case, (length or 1.0) * 10.0**-exponent, style


@pytest.mark.parametrize("chunk", slow_but_every(4, range(CHUNKS)))
def test_no_record_contributes_more_than_the_clipping_norm(chunk: int) -> None:
    records = 0
    for case, max_grad_norm, style in cases(chunk, RECORDS):
        bounds = case.norms.bounds().sqrt()
        for share in contributions(case, bounds, max_grad_norm, style):
            assert share <= ROUNDING_OF_CHECK
            records += 1
        if records >= RECORDS // CHUNKS:
            break
    assert records >= RECORDS // CHUNKS


def against_one_line(line: str) -> tuple[Outer, float]:
    """Return operands of one unit for which one line of docs/dev/norm-bound.md matters, and C."""
    ones, small = torch.ones(1, 1000, 4), torch.full((1, 1000, 4), 1 + 2.0**-7)
    if line == "(5) underflow of a Gram matrix":
        return Outer(1e-25 * ones, 1e16 * ones), 1e-9
    if line == "(10) rounding of a Gram matrix":
        wide = torch.ones(1, 4, 512)
        wide[..., 0] = 2.0**12
        return Outer(wide, ones[:, :4, :1]), 1.0
    if line == "(13) cancellation":
        alternating = ones * torch.tensor([1.0, -1.0]).repeat(500).view(1, -1, 1)
        return Outer(alternating * small + 2.0**-20 * ones, ones), 1e-3
    if line == "(15) rounding of the contraction":
        small[:, 0] = 2.0**24
        return Outer(small, ones), 1e4
    small[:, 1:] = 0
    return Outer(small, ones), 1.1e-44  # (17) factors that float32 holds with few digits


@pytest.mark.parametrize(
    "line",
    [
        "(5) underflow of a Gram matrix",
        "(10) rounding of a Gram matrix",
        "(13) cancellation",
        "(17) denormal factors",
    ],
)
def test_records_crafted_against_one_line_of_the_proof(line: str) -> None:
    outer, max_grad_norm = against_one_line(line)
    case = Case(outer_norms([outer]).of(0), torch.float32, outer)
    bounds = case.norms.bounds().sqrt()
    assert bool(bounds.isfinite().all())
    for part in (1.0, 0.99, 0.9, 0.7, 0.51):
        for share in contributions(case, bounds, max_grad_norm * part, "flat"):
            assert share <= ROUNDING_OF_CHECK


def test_a_sum_in_the_worst_order_adds_at_most_the_clipping_norm() -> None:
    """Line (15), for a kernel that adds one position after another. NumPy does so on any CPU."""
    outer, max_grad_norm = against_one_line("(15) rounding of the contraction")
    bounds = outer_norms([outer]).of(0).bounds().sqrt()
    factor = rounded_down(clip_factors(bounds, max_grad_norm, "flat"), torch.float32).float()
    terms = (factor * outer.left[0]).unsqueeze(2) * outer.right[0].unsqueeze(1)
    added = np.add.accumulate(terms.numpy(), axis=0, dtype=np.float32)[-1]
    assert norm(added.astype(np.float64).flatten().tolist()) <= max_grad_norm * ROUNDING_OF_CHECK
