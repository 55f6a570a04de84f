import math

import pytest

from dpft.privacy.accounting.batch_sizes import (
    BatchSizeNoise,
    noise_over_batch_sizes,
    square_root_rule,
)

SETTING = {"eps": 3, "delta": 1e-5, "num_examples": 50_000, "accountant": "rdp"}


def test_at_fixed_epochs_the_square_root_rule_holds_for_large_rates_and_is_too_low_for_small(
    accountants,
):
    # Li et al. 2022, appendix D and Figure 6: (3, 1e-5), N = 50k, 50 epochs; the rule holds at
    # rates in [2^-7, 1] and underestimates below 2^-8.
    points = noise_over_batch_sizes(
        [50_000, 12_500, 50, 12], epochs=50, accountants=accountants, **SETTING
    )
    assert [point.steps for point in points] == [208_333, 50_000, 200, 50]
    smallest, small, large, whole = (
        point.effective_noise_multiplier / rule
        for point, rule in zip(points, square_root_rule(points), strict=True)
    )
    assert whole == pytest.approx(1)
    assert large == pytest.approx(1, abs=0.05)
    assert smallest > small > 1.5


def test_at_fixed_steps_the_effective_noise_falls_with_the_batch_size(accountants):
    # Li et al. 2022, Figure 3, left.
    points = noise_over_batch_sizes([100, 6400, 800], steps=500, accountants=accountants, **SETTING)
    effective = [point.effective_noise_multiplier for point in points]
    assert effective == sorted(effective, reverse=True)
    assert all(point.accountant == "rdp" and point.epsilon <= 3 for point in points)


def test_a_batch_size_out_of_reach_is_said_and_the_others_stand(accountants):
    setting = {**SETTING, "eps": 1e-9, "delta": 1e-30}
    (point,) = noise_over_batch_sizes([50_000], steps=10**6, accountants=accountants, **setting)
    assert point.effective_noise_multiplier is None
    assert "eps=1e-09 is out of reach" in point.error and "privacy." not in point.error
    assert square_root_rule([point]) == [None]


def test_the_rule_is_fitted_at_the_largest_batch_size_that_has_noise():
    rates = (0.01, 0.04, 1.0)
    points = [
        BatchSizeNoise(
            expected_batch_size=rate * 100,
            sample_rate=rate,
            steps=1,
            noise_multiplier=None if rate == 1 else 2.0,
        )
        for rate in rates
    ]
    # 2 = c * sqrt(0.04), so c = 10; over the rate it is 10 / sqrt(rate).
    assert square_root_rule(points) == pytest.approx([100, 50, 10])
    assert math.isclose(points[1].effective_noise_multiplier, 50)
