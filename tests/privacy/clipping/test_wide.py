import pytest
import torch

from dpft.privacy.clipping import wide
from dpft.privacy.clipping.uses import GradientUse, OuterUse
from dpft.privacy.clipping.wide import WideUse, widen

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


def test_only_a_vocabularys_weight_is_wide():
    narrow = OuterUse(torch.ones(1, 2, 64), torch.ones(1, 2, 8))
    gradient = GradientUse(torch.ones(1, 5000))
    assert widen(narrow) is narrow and widen(gradient) is gradient
