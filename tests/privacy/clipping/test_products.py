"""Norms and weighted sums of products equal those of explicit per-example gradients in float64."""

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
    tied_norms,
    weighted_sums,
)

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
RELATIVE = {torch.float64: 1e-13}
SHAPES = [  # u, t, p, d
    (1, 1, 1, 1),
    (3, 1, 5, 4),
    (1, 7, 3, 9),
    (4, 6, 40, 2),
    (2, 33, 3, 3),
    (3, 5, 300, 700),
    (2, 0, 3, 4),
    (2, 259, 9, 70),
]


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(66)


def outer_gradients(use: Outer) -> Tensor:
    return torch.einsum("utp,utd->upd", use.left.double(), use.right.double())


def lookup_gradients(use: Lookup) -> Tensor:
    u, _, d = use.values.shape
    gradients = torch.zeros(u, use.count, d, dtype=torch.float64)
    for i in range(u):
        gradients[i].index_add_(0, use.ids[i], use.values[i].double())
    return gradients


def random_outer(
    generator: torch.Generator, u: int, t: int, p: int, d: int, dtype: torch.dtype
) -> Outer:
    left, right = (
        torch.randn(u, t, p, generator=generator),
        torch.randn(u, t, d, generator=generator),
    )
    return Outer(left.to(dtype), right.to(dtype))


def random_lookup(
    generator: torch.Generator, u: int, t: int, count: int, d: int, dtype: torch.dtype
) -> Lookup:
    ids = torch.randint(0, count, (u, t), generator=generator)
    values = torch.randn(u, t, d, generator=generator)
    values[:, t // 2 :] *= torch.randint(0, 2, (u, t - t // 2, 1), generator=generator)  # padding
    return Lookup(ids, values.to(dtype), count)


def assert_norms(norms: GradientNorms, gradients: Tensor, dtype: torch.dtype) -> None:
    """Squares are close to those of (u, …), and bounds are above them by little."""
    squares = gradients.flatten(1).square().sum(1)
    terms = norms.rounding.square().sum() + squares  # for gradients of no positions
    tolerance = RELATIVE.get(dtype, 1e-5)
    assert norms.square.dtype == torch.float64 and norms.square.shape == squares.shape
    torch.testing.assert_close(
        norms.square, squares, rtol=tolerance, atol=float(terms.max()) * 1e-12 + 1e-30
    )
    bounds = norms.bounds()
    assert bool((bounds >= squares).all())
    assert bool((bounds <= squares * (1 + 1000 * tolerance) + 1e-15).all())


def assert_sum(total: Tensor, gradients: Tensor, factors: Tensor, dtype: torch.dtype) -> None:
    expected = torch.einsum("u,u...->...", factors, gradients)
    assert total.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    scale = float(gradients.abs().max()) if gradients.numel() else 0.0
    torch.testing.assert_close(
        total.double(),
        expected,
        rtol=RELATIVE.get(dtype, 1e-6),
        atol=RELATIVE.get(dtype, 1e-6) * scale + 1e-30,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outer_products_equal_explicit_gradients(
    shape: tuple[int, int, int, int], dtype: torch.dtype, generator: torch.Generator
) -> None:
    use = random_outer(generator, *shape, dtype)
    factors = torch.rand(shape[0], generator=generator, dtype=torch.float64)
    gradients = outer_gradients(use)
    assert_norms(outer_norms([use]).of(0), gradients, dtype)
    assert_sum(use.weighted_sum(factors), gradients, factors, dtype)
    formed = use.formed().flatten(1)
    assert_norms(formed_norms(formed), formed.double(), dtype)
    torch.testing.assert_close(formed.double(), gradients.flatten(1), rtol=1e-5, atol=1e-5)
    assert_sum(formed_weighted_sum(formed, factors), gradients.flatten(1), factors, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (3, 1, 5, 4), (2, 9, 4, 3), (3, 20, 500, 8), (2, 0, 3, 4)], ids=str
)
def test_lookups_equal_explicit_gradients(
    shape: tuple[int, int, int, int], dtype: torch.dtype, generator: torch.Generator
) -> None:
    use = random_lookup(generator, *shape, dtype)
    factors = torch.rand(shape[0], generator=generator, dtype=torch.float64)
    gradients = lookup_gradients(use)
    assert_norms(use.norms(), gradients, dtype)
    assert_sum(use.weighted_sum(factors), gradients, factors, dtype)
    formed = use.formed().flatten(1)
    assert_norms(formed_norms(formed), formed.double(), dtype)
    torch.testing.assert_close(formed.double(), gradients.flatten(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 3, 500])
def test_a_lookup_is_added_to_the_sum_of_a_tied_head(
    count: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    use = random_lookup(generator, 4, 9, count, 6, dtype)
    factors = torch.rand(4, generator=generator, dtype=torch.float64)
    head = torch.randn(count, 6, generator=generator)
    total = use.weighted_sum(factors, head.clone())
    expected = torch.einsum("u,u...->...", factors, lookup_gradients(use))
    torch.testing.assert_close(total.double(), head + expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("head_positions", "positions"), [(6, 6), (5, 9), (1, 1)])
def test_tied_weights_have_the_cross_term(
    head_positions: int, positions: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    count, d = 11, 5
    outer = random_outer(generator, 3, head_positions, count, d, dtype)
    lookup = random_lookup(generator, 3, positions, count, d, dtype)
    norms = tied_norms(outer_norms([outer]).of(0), lookup.norms(), outer, lookup)
    assert_norms(norms, outer_gradients(outer) + lookup_gradients(lookup), dtype)


def test_tied_weights_that_cancel_have_a_norm_near_zero(generator: torch.Generator) -> None:
    ids = torch.tensor([[1, 3, 3, 0]])
    values = torch.randn(1, 4, 6, generator=generator)
    outer = Outer(-torch.nn.functional.one_hot(ids, 5).float(), values)
    lookup = Lookup(ids, values, 5)
    norms = tied_norms(outer_norms([outer]).of(0), lookup.norms(), outer, lookup)
    assert float(norms.bounds().sqrt()) < 1e-2
    assert float(norms.square.abs()) < 1e-4


def test_many_uses_at_once_are_those_of_each_alone(generator: torch.Generator) -> None:
    shared = torch.randn(2, 6, 8, generator=generator)
    uses = [Outer(torch.randn(2, 6, p, generator=generator), shared) for p in (3, 5, 3)]
    uses += [
        random_outer(generator, 2, 6, 5, d, dtype)
        for d, dtype in ((8, DTYPES[1]), (2, DTYPES[2]), (8, DTYPES[0]))
    ]
    uses.append(Outer(uses[3].left, uses[5].right))  # of two precisions
    together, factors = outer_norms(uses), torch.tensor([0.5, 0.25], dtype=torch.float64)
    sums = dict(weighted_sums(uses, factors))
    for index, use in enumerate(uses):
        alone = outer_norms([use]).of(0)
        torch.testing.assert_close(together.square[index], alone.square, rtol=1e-6, atol=0)
        torch.testing.assert_close(together.bounds()[index], alone.bounds(), rtol=1e-6, atol=0)
        torch.testing.assert_close(sums[index], use.weighted_sum(factors), rtol=1e-5, atol=1e-6)
        coarsest = use.left.dtype if use.left.dtype == use.right.dtype else torch.float32
        assert_norms(together.of(index), outer_gradients(use), coarsest)


def test_uses_are_processed_in_chunks_of_bounded_memory(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = torch.randn(2, 6, 8, generator=generator)
    uses = [Outer(torch.randn(2, 6, 3, generator=generator), shared) for _ in range(5)]
    whole = outer_norms(uses)
    monkeypatch.setattr(products, "_numbers_at_a_time", lambda device: 2 * 2 * 36)
    chunks = outer_norms(uses)
    torch.testing.assert_close(chunks.square, whole.square)
    torch.testing.assert_close(chunks.bounds(), whole.bounds())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_joined_uses_are_the_sum_of_their_gradients(
    dtype: torch.dtype, generator: torch.Generator
) -> None:
    outers = [random_outer(generator, 2, t, 3, 4, dtype) for t in (5, 2)]
    assert_norms(
        outer_norms([Outer.concatenate(outers)]).of(0),
        outer_gradients(outers[0]) + outer_gradients(outers[1]),
        dtype,
    )
    lookups = [random_lookup(generator, 2, t, 6, 4, dtype) for t in (5, 2)]
    assert_norms(
        Lookup.concatenate(lookups).norms(),
        lookup_gradients(lookups[0]) + lookup_gradients(lookups[1]),
        dtype,
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30, -1e25])
def test_non_finite_units_are_seen_and_left_out(value: float, generator: torch.Generator) -> None:
    outer = random_outer(generator, 3, 4, 5, 6, torch.float32)
    lookup = random_lookup(generator, 3, 4, 5, 6, torch.float32)
    outer.left[1, 2, 3] = value
    outer.right[1] *= 1e10
    lookup.values[1, 0, 0] = value
    keep = torch.tensor([True, False, True])
    for norms in (outer_norms([outer]).of(0), formed_norms(outer.formed().flatten(1))):
        in_range = abs(value) < 1e31 and norms.bounds().isfinite().all()
        assert in_range or torch.equal(norms.bounds().isfinite(), keep)
    assert torch.equal(lookup.norms().bounds().isfinite(), keep) or abs(value) <= 1e30
    factors = torch.tensor([0.5, 0.0, 0.25], dtype=torch.float64)
    for use, gradients in (
        (outer.without(keep), outer_gradients(outer)),
        (lookup.without(keep), lookup_gradients(lookup)),
    ):
        expected = 0.5 * gradients[0] + 0.25 * gradients[2]
        torch.testing.assert_close(
            use.weighted_sum(factors).double(), expected, rtol=1e-5, atol=1e-5
        )
    values = formed_without(outer.formed().flatten(1), keep)
    torch.testing.assert_close(
        formed_weighted_sum(values, factors),
        outer.without(keep).weighted_sum(factors).flatten(),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.fixture
def matrix_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU multiply halves with float32 sums, as accelerators do."""

    def bmm(left: Tensor, right: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
        return left.to(out_dtype or left.dtype) @ right.to(out_dtype or right.dtype)

    def baddbmm(total: Tensor, left: Tensor, right: Tensor, *, out_dtype: torch.dtype) -> Tensor:
        return total + left.to(out_dtype) @ right.to(out_dtype)

    monkeypatch.setattr(torch, "bmm", bmm)
    monkeypatch.setattr(torch, "baddbmm", baddbmm)
    monkeypatch.setattr(products, "_truncates_as_assumed", lambda device: True)
    products._constants.cache_clear()


@pytest.mark.usefixtures("matrix_units")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_in_matrix_units_equal_explicit_gradients(
    shape: tuple[int, int, int, int], dtype: torch.dtype, generator: torch.Generator
) -> None:
    u, t, p, d = shape
    use = random_outer(generator, u, t, p, d, dtype)
    factors = torch.rand(u, generator=generator, dtype=torch.float64)
    if dtype == torch.bfloat16:  # factors have eight digits there
        factors = factors.bfloat16().double() * (1 + 2.0**-12)
    gradients = outer_gradients(use)
    assert_norms(outer_norms([use]).of(0), gradients, dtype)
    expected = torch.einsum("u,u...->...", factors, gradients)
    total = use.weighted_sum(factors)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total.double(), expected, rtol=1e-3, atol=1e-3)
    assert float(total.double().norm()) <= float((factors * gradients.flatten(1).norm(dim=1)).sum())


def test_a_truncated_factor_times_a_bfloat16_number_is_two_bfloat16_numbers(
    generator: torch.Generator,
) -> None:
    factors = torch.rand(10000, generator=generator)
    short = (factors.view(torch.int32) & -(2**16)).view(torch.float32)
    values = torch.randn(10000, generator=generator).bfloat16()
    high, low = products.bfloat16_pair(values * short)
    assert torch.equal(high.double() + low.double(), values.double() * short.double())
    assert bool((low.float().abs() <= high.float().abs() * 2.0**-8).all())
