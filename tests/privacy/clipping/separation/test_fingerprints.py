"""Whether a row was scaled shows in two numbers of it, and a mix of rows shows too."""

import pytest
import torch

from dpft.privacy.clipping.separation.fingerprints import (
    LOST_TO_FLOAT16,
    Disproved,
    Fingerprint,
    Pass,
)
from dpft.privacy.clipping.uses import GradientUse, OuterUse

WEIGHTS = torch.tensor([0.5, 4.0, 2.0])
EVERY = torch.ones(3, dtype=torch.bool)
NAME = "dense.weight"


def use(seed=0, size=1.0):
    g = torch.Generator().manual_seed(seed)
    return OuterUse(size * torch.randn(3, 2, 4, generator=g), torch.randn(3, 2, 5, generator=g))


def scaled(before, weights=WEIGHTS):
    return OuterUse(before.left * weights[:, None, None], before.right)


def passed(*uses):
    found = Pass()
    for each in uses:
        found.note(NAME, each)
    return found


def check(before, after, *, rows=EVERY, weights=WEIGHTS, lossy=False):
    return before.check_scaled(after, weights[rows], rows, lossy=lossy)


def test_rows_scaled_by_their_weights_pass():
    assert check(passed(use(), use(1)), passed(scaled(use()), scaled(use(1))))


OTHERS = {
    "left as it was": lambda u: u,
    "scaled by another row's weight": lambda u: scaled(u, WEIGHTS.flip(0)),
    "mixed with another row": lambda u: OuterUse(
        scaled(u).left + 1e-3 * u.left.roll(1, 0), u.right
    ),
    "turned around": lambda u: scaled(OuterUse(u.left.flip(2), u.right)),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_any_other_row_is_disproved_by_its_parameters_name(other):
    with pytest.raises(Disproved, match=r"dense\.weight recorded for one example depends on"):
        check(passed(use()), passed(other(use())))


def test_a_pass_that_met_other_uses_is_disproved():
    with pytest.raises(Disproved, match="met different uses"):
        check(passed(use()), passed())


def test_only_the_rows_that_are_asked_for_are_compared():
    after = scaled(use())
    after.left[1] = float("nan")
    rows = torch.tensor([True, False, True])
    assert check(passed(use()), passed(after), rows=rows)
    assert passed(after).finite_rows(EVERY).tolist() == rows.tolist()


@pytest.mark.parametrize(("size", "lost"), [(LOST_TO_FLOAT16 / 100, True), (1.0, False)])
def test_what_is_so_small_that_float16_lost_it_says_nothing(size, lost):
    before, after = passed(use(size=size)), passed(use(seed=1, size=size))
    if lost:
        assert not check(before, after, lossy=True)
    else:
        with pytest.raises(Disproved):
            check(before, after, lossy=True)


def test_the_smallest_peak_norm_is_the_largest_finite_row_of_the_smallest_tensor():
    left = torch.tensor([[[3.0, 4.0]], [[0.0, 1.0]], [[float("inf"), 0.0]]])
    right = torch.full((3, 1, 1), 100.0)
    assert Fingerprint.of(NAME, OuterUse(left, right)).smallest_peak_norm == 5.0
    nothing = OuterUse(torch.zeros(3, 1, 2), right)
    assert Fingerprint.of(NAME, nothing).smallest_peak_norm == 0.0


def test_a_parameter_has_a_gradient_where_no_tensor_of_some_use_is_zero():
    found = passed(use())
    found.note("dense.bias", GradientUse(torch.zeros(3, 2)))
    assert found.parameters_with_gradients() == {NAME}
