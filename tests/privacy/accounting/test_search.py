import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpft.privacy.accounting.mechanism import AccountantError
from dpft.privacy.accounting.search import MAX_NOISE, smallest_noise


class Counted:
    """A curve that remembers where it was evaluated."""

    def __init__(self, curve):
        self.curve, self.seen = curve, {}

    def __call__(self, noise_multiplier):
        self.seen[noise_multiplier] = self.curve(noise_multiplier)
        return self.seen[noise_multiplier]


@settings(deadline=None, max_examples=60)
@given(
    eps=st.floats(1e-3, 100),
    power=st.floats(0.8, 4),
    scale=st.floats(0.1, 100),
    start=st.floats(0.05, 1e4),
)
def test_finds_the_edge_and_never_passes_it(eps, power, scale, start):
    curve = Counted(lambda noise: (scale / noise) ** power)
    exact = scale / eps ** (1 / power)
    if not 0.03 < exact < MAX_NOISE / 2:
        return
    noise = smallest_noise(curve, eps, start=start)
    assert curve.seen[noise] <= eps
    assert noise == pytest.approx(exact, rel=2e-3)
    assert float(f"{noise:.6g}") == noise
    assert len(curve.seen) < 40


def test_few_evaluations_from_a_good_start():
    curve = Counted(lambda noise: 3 / noise**2)
    smallest_noise(curve, 3, start=1.05)
    assert len(curve.seen) <= 5


def test_a_start_within_tolerance_is_the_answer():
    curve = Counted(lambda noise: 3 / noise)
    assert smallest_noise(curve, 3, start=1.0001) == 1.0001
    assert len(curve.seen) == 1


def test_a_step_in_the_curve_ends_at_its_upper_edge():
    noise = smallest_noise(lambda noise: 5.0 if noise < 2 else 0.0, 3, start=1)
    assert noise == pytest.approx(2, rel=1e-4)
    assert noise >= 2


def test_ripples_do_not_break_the_guarantee():
    curve = Counted(lambda noise: 8 / noise**3 * (1 + 1e-3 * (int(noise * 1e5) % 2)))
    assert curve.seen.get(smallest_noise(curve, 8, start=2), 9) <= 8


def test_targets_out_of_reach_are_declined_with_the_way_out():
    with pytest.raises(AccountantError, match="raise privacy.eps"):
        smallest_noise(lambda noise: 1.0, 0.5, start=1)
    with pytest.raises(AccountantError, match="lower privacy.eps"):
        smallest_noise(lambda noise: 1.0, 2.0, start=1)
