"""Whatever a record's numbers are, it adds at most C to any kind of layer, and it ends no run.

``test_worst_case_engines.py`` tries other magnitudes, precisions and styles, on one kind of model.
"""

from itertools import product

import pytest
import torch
from torch import nn

from tests.privacy.clipping.crafted_records import (
    accumulated_among_others,
    cases,
    contribution,
    true_norm,
)
from tests.privacy.clipping.oracle import ENGINES, clipped, total_norm
from tests.slowness import slow_but

COMPANY = ("none", "weightless", "not finite", "copies", "unit")
EVERY = list(cases(400))
FEW = EVERY[::44]
"""Of every kind; kinds come in turn, nine of them."""
EXACTLY = 1 + 1e-12
"""Norms are computed in float64 from the numbers that were added."""


def of_engines(records):
    """Return each record with one of the two engines in turn."""
    return [(case, ENGINES[k % 2]) for k, case in enumerate(records)]


def words(value):
    return value if isinstance(value, str) else f"{value.kind}-{value.seed}"


@pytest.mark.parametrize(
    ("case", "engine"), slow_but(of_engines(FEW), product(EVERY, ENGINES[:2])), ids=words
)
def test_no_record_adds_more_than_the_clipping_norm(case, engine):
    assert contribution(case, engine) <= EXACTLY


@pytest.mark.parametrize(
    ("case", "engine"), slow_but(of_engines(FEW[::2]), product(EVERY[::2], ENGINES[:2])), ids=words
)
@pytest.mark.parametrize("company", slow_but(("not finite", "unit"), COMPANY[1:]))
def test_no_record_adds_more_among_other_rows(case, engine, company):
    assert contribution(case, engine, company) <= EXACTLY


@pytest.mark.parametrize(
    ("case", "engine"), slow_but(of_engines(FEW[::2]), product(EVERY, ENGINES[:2])), ids=words
)
def test_no_record_ends_a_run(case, engine):
    norms = accumulated_among_others(case, engine)
    assert norms.shape == (12,)
    assert bool((norms[1:6] > 0).all()) and bool((norms[7:] > 0).all())


@pytest.mark.slow
def test_a_record_of_ordinary_conditioning_is_kept_almost_whole():
    """Bounds must not cost what ordinary records contribute, at any magnitude float32 holds."""
    for number, case in enumerate(EVERY):
        is_plain = case.cancels is None and case.spread == 0.0 and case.kind != "tied"
        held = abs(case.inputs) < 15 and abs(case.weights) < 15
        length = float(true_norm(case))
        if not (is_plain and held and 1e-15 < length < 1e15):
            continue
        kept = contribution(case, ENGINES[number % 2])
        assert kept >= 0.999 * min(1.0, length / case.max_grad_norm()), case


@pytest.mark.parametrize("steps", [2, 300])
@pytest.mark.parametrize("engine", ENGINES[:2])
def test_a_norm_counts_positions_whose_products_underflow(engine, steps):
    """One position of norm 8e-4 beside others of norm 0.8 whose inputs' squares are 0."""
    layer = nn.Linear(8, 8, bias=False)
    losses = lambda model, batch: (model(batch[0]) * batch[1]).sum((1, 2))  # noqa: E731
    inputs, weights = torch.full((1, steps, 8), 1e-23), torch.full((1, steps, 8), 1e22)
    inputs[:, 0], weights[:, 0] = 1e-2, 1e-2
    exact = torch.einsum("btr,btc->rc", weights.double(), inputs.double())
    synthetic = [(torch.randn(n, steps, 8), torch.randn(n, steps, 8)) for n in (4, 3)]
    got = clipped(layer, losses, [(inputs, weights)], 0.1, synthetic=synthetic, engine=engine)
    assert float(total_norm(got.gradients)) <= 0.1
    if engine == "rows":
        assert float(got.norms[0]) == pytest.approx(float(exact.norm()), rel=1e-4)


@pytest.mark.slow
def test_a_record_out_of_range_leaves_the_others_as_they_are():
    layer = nn.Linear(8, 8)
    losses = lambda model, batch: (model(batch[0]) * batch[1]).sum(1)  # noqa: E731
    torch.manual_seed(0)
    rows, weights = torch.randn(4, 8), torch.randn(4, 8)
    for engine in ENGINES[:2]:
        alone = clipped(layer, losses, [(rows[1:], weights[1:])], 1e-2, engine=engine)
        for size in ((1e30, 1e30), (1e38, 1e-38), (1e-38, 1e38), (1e25, 1e10), (1e-25, 1e-25)):
            extreme = rows.clone(), weights.clone()
            extreme[0][0], extreme[1][0] = rows[0] * size[0], weights[0] * size[1]
            synthetic = [(rows, weights), (rows[:3], weights[:3])]
            got = clipped(layer, losses, [extreme], 1e-2, synthetic=synthetic, engine=engine)
            assert got.norms.isfinite().all()
            assert got.minus(alone) <= 1e-2 * (1 + 1e-6), (engine, size)
