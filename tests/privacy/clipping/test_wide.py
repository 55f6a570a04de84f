import pytest
import torch

from dpft.privacy.clipping import PerExampleClipper, wide
from dpft.privacy.clipping.uses import GradientUse, OuterUse
from dpft.privacy.clipping.wide import WideUse, certain, widen, widen_at_a_glance

ROWS, STEPS = 4200, 6


def head(dtype=torch.float64, live=((0, 6), (2, 4), (3, 3)), columns=5):
    """A head's use whose positions outside ``live`` have an all-zero output gradient."""
    generator = torch.Generator().manual_seed(0)
    left = torch.zeros(len(live), STEPS, ROWS, dtype=dtype)
    for example, (start, end) in enumerate(live):
        left[example, start:end] = torch.randn(end - start, ROWS, generator=generator).to(dtype)
    right = torch.randn(len(live), STEPS, columns, generator=generator).to(dtype)
    return OuterUse(left, right)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("live", [((0, 6), (2, 4), (3, 3)), ((0, 6), (0, 6), (0, 6))])
@pytest.mark.parametrize("ghost", [True, False])
def test_norm_and_contraction_are_those_of_the_plain_use(dtype, live, ghost, monkeypatch):
    monkeypatch.setattr(wide, "ghost_is_cheaper", lambda shape: ghost)
    use = head(dtype, live)
    got = widen(use)
    assert isinstance(got, WideUse)
    assert got.spans == tuple((s, e) if s < e else (0, 0) for s, e in live)
    exact = torch.einsum("btr,btc->brc", use.left.double(), use.right.double())
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    assert torch.allclose(got.squares().values.double(), exact.square().sum((1, 2)), rtol=tolerance)
    total = torch.ones(ROWS, 5, dtype=torch.promote_types(dtype, torch.float32))
    factors = torch.tensor([0.5, 2.0, 3.0], dtype=total.dtype)
    got.add_weighted_sum(factors, total)
    expected = 1 + torch.einsum("b,brc->rc", factors.double(), exact)
    atol = 0 if dtype == torch.float64 else 1e-4
    assert torch.allclose(total.double(), expected, rtol=tolerance, atol=atol)


def test_an_example_left_out_is_not_read_even_where_it_is_not_finite():
    use = head(live=((0, 6), (0, 6), (0, 6)))
    use.left[1] = float("nan")
    kept = widen(use).keep(torch.tensor([True, False, True]))
    assert kept.squares().values[1] == 0
    total = torch.zeros(ROWS, 5, dtype=torch.float64)
    kept.add_weighted_sum(torch.ones(3, dtype=torch.float64), total)
    finite = torch.einsum("btr,btc->rc", use.left[[0, 2]], use.right[[0, 2]])
    assert torch.allclose(total, finite)


def test_a_row_whose_only_entry_is_tiny_and_late_still_counts():
    use = head(dtype=torch.float32, live=((0, 0),))
    use.left[0, 4, ROWS - 1] = 1e-30
    assert widen(use).spans == ((4, 5),)


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [(3072, 160, True), (3072, 768, False), (4096, 1024, True), (4096, 4096, False)],
    ids=["small vocabulary", "feed-forward", "vocabulary", "square"],
)
def test_a_vocabulary_is_told_by_its_shape(rows, columns, expected):
    use = OuterUse(torch.ones(1, 1, rows), torch.ones(1, 1, columns))
    assert isinstance(widen(use), WideUse) is expected


def test_only_a_vocabularys_weight_is_wide():
    narrow = OuterUse(torch.ones(1, 2, 64), torch.ones(1, 2, 8))
    gradient = GradientUse(torch.ones(1, 5000))
    assert widen(narrow) is narrow and widen(gradient) is gradient


def test_a_glance_that_missed_positions_says_so_and_a_look_with_care_finds_them():
    use = head(live=((0, 6), (2, 4), (0, 0)))
    use.left[1, [2, 3], : wide.PROBE] = 0
    use.left[1, 5, -1] = 1.0
    guess = widen_at_a_glance(use)
    assert guess.spans == ((0, 6), (0, 0), (0, 0)) and bool(guess.doubt)
    assert certain(guess).spans == ((0, 6), (2, 6), (0, 0)) and certain(guess).doubt is None
    sure = widen_at_a_glance(head(live=((0, 6), (2, 4), (0, 0))))
    assert certain(sure).spans == sure.spans and not bool(sure.doubt)


@pytest.mark.parametrize("units", [None, torch.tensor([1, 0, 1])], ids=["examples", "units"])
@pytest.mark.parametrize("engine", ["book_keeping", "two_pass", "instantiate"])
def test_positions_that_a_glance_misses_count_in_every_engine(engine, units):
    g = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(8, ROWS, bias=False)
    inputs = torch.randn(3, STEPS, 8, generator=g)
    weights = torch.randn(3, STEPS, ROWS, generator=g)
    weights[:, :, : wide.PROBE] *= torch.tensor([0.0, 1, 0, 0, 1, 0])[:, None]
    found = []
    for name in (engine, "loop"):
        layer.zero_grad()
        with PerExampleClipper(layer, 0.5, engine=name) as clipper:
            norms = [
                clipper.accumulate(lambda: (layer(inputs) * weights).sum((1, 2)), units)
                for _ in range(2)
            ]
        found.append((*norms, layer.weight.grad))
    for got, expected in zip(*found, strict=True):
        assert torch.allclose(got, expected, rtol=1e-5, atol=1e-7)
