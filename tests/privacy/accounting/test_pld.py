import pytest

from dpft.privacy.accounting import pld
from dpft.privacy.accounting.mechanism import AccountantError, SampledGaussian

E2E = {"sample_rate": 1024 / 42061, "steps": 410, "delta": 1 / (2 * 42061)}


@pytest.mark.slow
def test_grids_agree_in_a_usual_setting():
    mechanism = SampledGaussian(noise_multiplier=1.0747, **E2E)
    coarse, fine = pld.epsilon(mechanism).upper, pld.epsilon(mechanism, 1e-4).upper
    assert coarse == pytest.approx(fine, abs=5e-4)
    assert coarse >= fine


def test_bounds_without_sampling_are_above_the_exact_epsilon_and_close():
    from dp_accounting import get_epsilon_gaussian

    mechanism = SampledGaussian(noise_multiplier=5, sample_rate=1, steps=10, delta=1e-6)
    exact = get_epsilon_gaussian(5 / 10**0.5, 1e-6)  # Balle and Wang 2018, Theorem 8.
    assert exact <= pld.epsilon(mechanism).upper <= exact + 1e-3


def test_small_epsilons_are_refined():
    mechanism = SampledGaussian(noise_multiplier=10, sample_rate=1e-3, steps=100, delta=1e-5)
    # dp_accounting: 0.00669 on the 1e-3 grid, 0.00215 on the 1e-4 grid.
    assert pld.epsilon(mechanism).upper == pytest.approx(0.00215, abs=1e-5)


@pytest.mark.slow
def test_rounding_cannot_make_it_an_underestimate():
    mechanism = SampledGaussian(
        noise_multiplier=0.3,
        sample_rate=8192 / 5240387307,
        steps=100_000,
        delta=1 / 5240387307,
    )
    # The same distribution composed in 80-bit arithmetic gives 11.5746, and PRV's lower bound is
    # 11.5637; float64 alone gave 11.5630.
    assert 11.5746 <= pld.epsilon(mechanism).upper <= 13.4586


def test_it_declines_where_rounding_exceeds_delta():
    # dp_accounting alone answers 570 here where RDP proves 434.
    mechanism = SampledGaussian(noise_multiplier=5, sample_rate=0.1, steps=10**6, delta=1e-12)
    with pytest.raises(AccountantError, match="rounding"):
        pld.epsilon(mechanism)
