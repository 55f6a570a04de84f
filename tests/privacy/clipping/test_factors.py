import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpft.errors import InputError
from dpft.privacy.clipping.engine import STYLES, clipping_style, in_range

NORMS = torch.tensor([0.0, 1.0, 4.0, 8.0])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("flat", [1.0, 1.0, 0.5, 0.25]),
        ("automatic", [2 / 0.01, 2 / 1.01, 2 / 4.01, 2 / 8.01]),
        ("automatic_v", [0.0, 2.0, 0.5, 0.25]),
    ],
)
def test_factors_are_the_styles_closed_form(name, expected):
    factors = clipping_style(name, max_grad_norm=2.0).factors(NORMS)
    assert torch.allclose(factors, torch.tensor(expected), rtol=1e-5)


def test_per_layer_clips_each_of_k_groups_at_c_over_root_k():
    style = clipping_style("per_layer", max_grad_norm=2.0, groups=4)
    factors = style.factors(torch.stack([NORMS, 2 * NORMS, NORMS, NORMS]))
    assert torch.allclose(factors[0], torch.tensor([1.0, 1.0, 0.25, 0.125]), rtol=1e-5)
    assert torch.allclose(factors[1], torch.tensor([1.0, 0.5, 0.125, 0.0625]), rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", STYLES)
def test_a_clipped_norm_never_exceeds_the_sensitivity(name, dtype):
    style = clipping_style(name, max_grad_norm=0.1)
    norms = torch.logspace(-37, 18, 100_001, dtype=dtype)
    scaled = norms * style.factors(norms)
    assert (scaled <= style.sensitivity).all() and scaled.isfinite().all()


@given(
    groups=st.integers(1, 40),
    max_grad_norm=st.floats(1e-3, 1e3),
    norms=st.lists(st.floats(0, 1e15), min_size=40, max_size=40),
)
def test_all_groups_together_never_exceed_the_sensitivity(groups, max_grad_norm, norms):
    style = clipping_style("per_layer", max_grad_norm=max_grad_norm, groups=groups)
    column = torch.tensor(norms[:groups], dtype=torch.float64)[:, None]
    scaled = (column * style.factors(column)).square().sum().sqrt()
    assert scaled <= style.sensitivity * (1 + 1e-12)


@pytest.mark.parametrize("name", STYLES)
def test_every_style_states_its_sensitivity(name):
    assert clipping_style(name, max_grad_norm=0.3, groups=7).sensitivity == 0.3


def test_automatic_v_takes_a_norm_in_which_squares_were_lost_for_zero():
    """A million entries of 2.6e-23, whose float32 squares are 0, hold a norm of 2.6e-20."""
    entries = torch.full((1_000_001,), 2.6e-23)
    entries[0] = 4e-23
    norm = entries.square().sum().sqrt()[None]
    assert 0 < norm < 1e-22
    assert clipping_style("automatic_v", max_grad_norm=1.0).factors(norm) == 0


def test_only_per_layer_has_groups():
    assert [clipping_style(n, max_grad_norm=1.0, groups=5).groups for n in STYLES] == [1, 1, 1, 5]


def test_an_unknown_style_is_refused_with_the_known_ones():
    known = "flat, automatic, automatic_v, per_layer"
    with pytest.raises(InputError, match=rf"`clipping` must be one of {known}, got 'foo'"):
        clipping_style("foo", max_grad_norm=1.0)


@pytest.mark.parametrize("name", STYLES)
@pytest.mark.parametrize("groups", [1, 5])
def test_every_style_leaves_the_headroom_for_rounding_and_no_more(name, groups):
    style = clipping_style(name, max_grad_norm=2.0, groups=groups, headroom=0.25)
    norms = torch.full((style.groups, 1), 1e9, dtype=torch.float64)
    moved = float((norms * style.factors(norms)).norm())
    assert 1.5 * (1 - 1e-9) < moved <= 1.5


def test_a_factor_that_lost_digits_becomes_0_and_one_that_is_too_large_is_lowered():
    """2^-149, the least number, stands for all from half of it to one and a half times it."""
    tiny = torch.finfo(torch.float32).tiny
    factors = torch.tensor([2.0**-149, tiny / 2, tiny, 1.0, 1e30])
    *lost, least, whole, largest = in_range(factors).tolist()
    assert lost == [0, 0] and (least, whole) == (tiny, 1)
    assert largest == pytest.approx(1e12, rel=2e-2)
