"""Budgets of compute: their divisions, the advice, and the ratio's limits in closed form."""

import math
from typing import Any

import pytest

from dpft.errors import InputError
from dpft.privacy.accounting import batch_sizes
from dpft.privacy.accounting.batch_sizes import (
    ENOUGH,
    BatchSizeNoise,
    Budget,
    Division,
    advised,
    divisions,
    noise_over_batch_sizes,
    ratio_curve,
    saturation,
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
    points = noise_over_batch_sizes([100, 6400], steps=500, accountants=accountants, **SETTING)
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


BUDGET = Budget(
    tokens=40_000, tokens_per_example=10, num_examples=400, eps=3, delta=1e-4, accountant="rdp"
)

NOBODY: Any = None
"""In place of accountants, where they are not asked."""


def limit_noise(batch_sizes, *, steps: int, num_examples: int, **_: object) -> list[BatchSizeNoise]:
    """Mu = q sqrt(T (exp(1 / s^2) - 1)), solved for s at mu = 1 (Bu et al. 2020, 1911.11607)."""
    found = []
    for batch in batch_sizes:
        rate = batch / num_examples
        noise = 1 / math.sqrt(math.log1p(1 / (rate**2 * steps)))
        found.append(
            BatchSizeNoise(
                expected_batch_size=batch, sample_rate=rate, steps=steps, noise_multiplier=noise
            )
        )
    return found


@pytest.fixture(autouse=True)
def quick(request, monkeypatch) -> None:
    """Noise by the central limit of Gaussian DP, in place of accountants that take seconds."""
    if "real" not in request.fixturenames:
        monkeypatch.setattr(batch_sizes, "noise_over_batch_sizes", limit_noise)


@pytest.fixture
def real() -> None:
    """Asks for accountants themselves."""


@pytest.fixture
def found() -> list[Division]:
    return divisions(BUDGET, NOBODY)


def test_each_division_spends_the_budget_and_takes_twice_the_steps_of_the_last(found) -> None:
    assert (found[0].steps, found[0].expected_batch_size) == (10, 400), "all units in each step"
    for before, after in zip(found, found[1:], strict=False):
        assert after.steps == 2 * before.steps
    for each in found:
        tokens = each.steps * each.expected_batch_size * BUDGET.tokens_per_example
        assert BUDGET.tokens - each.steps * BUDGET.tokens_per_example < tokens <= BUDGET.tokens
    assert len(found) >= 4


def test_smaller_batches_have_less_signal_and_the_last_two_less_than_enough(found) -> None:
    strengths = [each.strength for each in found]
    assert strengths == sorted(strengths, reverse=True)
    below = [strength < ENOUGH * strengths[0] for strength in strengths]
    assert below == [False] * (len(found) - 2) + [True] * 2
    assert advised(found) == found[-3]


def test_with_all_units_in_each_step_the_ratio_is_that_of_one_gaussian(
    real, monkeypatch, accountants
) -> None:
    """T Gaussian steps of noise s are one of noise s / sqrt(T) (Mironov 2017, proposition 1)."""
    monkeypatch.setattr(batch_sizes, "CURVE_SHARES", (1,))
    few, many = ratio_curve(BUDGET, 4, accountants), ratio_curve(BUDGET, 64, accountants)
    assert few[-1].sample_rate == many[-1].sample_rate == 1
    first, second = few[-1].noise_multiplier, many[-1].noise_multiplier
    assert first is not None and second is not None
    assert second / first == pytest.approx(4, rel=2e-3), "calibration's precision"


def test_at_fixed_steps_the_ratio_falls_with_the_batch_and_stops_falling() -> None:
    curve = ratio_curve(BUDGET, 100, NOBODY)
    ratios = [each.noise_multiplier / each.expected_batch_size for each in curve]
    assert [each.expected_batch_size for each in curve] == [1, 6, 25, 100, 400]
    assert ratios == sorted(ratios, reverse=True)
    falls = [math.log(a / b) for a, b in zip(ratios, ratios[1:], strict=False)]
    assert falls[-1] < 0.2 * falls[0]


def division(steps: int, batch: int, noise: float) -> Division:
    return Division(steps=steps, expected_batch_size=batch, noise_multiplier=noise)


def test_the_advice_is_the_most_steps_with_enough_signal() -> None:
    found = [division(100, 100, 1.0), division(400, 50, 1.05), division(1600, 20, 1.0)]
    assert [each.strength for each in found] == pytest.approx([1000, 20 * 50 / 1.05, 800])
    assert advised(found) == found[1]
    assert advised(found[:1]) == found[0]


@pytest.mark.parametrize(
    ("steps", "batch", "noise", "measured"),
    [
        (1_000, 64, 1.0, True),
        (999, 64, 1.0, False),
        (128_001, 64, 1.0, False),
        (1_000, 63, 1.0, False),
        (1_000, 2**23, 1.0, True),
        (1_000, 2**24, 1.0, False),
    ],
)
def test_what_was_measured_is_said(steps: int, batch: int, noise: float, measured: bool) -> None:
    """McKenna et al. 2025, dp_scaling_laws: 1,000 to 128,000 steps, ratios 0.5^23 to 0.5^6."""
    assert division(steps, batch, noise).is_measured == measured


def test_less_than_an_example_is_refused() -> None:
    less = Budget(**{**vars(BUDGET), "tokens": 9})
    with pytest.raises(InputError, match="compute must be at least the 10 tokens of an example"):
        divisions(less, NOBODY)


TABLE_2 = {
    # (units, epsilon): compute in FLOPs, tokens over parameters. McKenna et al. 2025, Table 2.
    (10**5, 1): (1.3e16, 1.0e2),
    (10**5, 64): (7.5e18, 3.2e3),
    (10**6, 4): (8.8e18, 4.1e3),
    (10**6, 16): (3.3e19, 1.9e4),
    (10**7, 1): (3.8e19, 2.3e4),
    (10**7, 16): (2.0e21, 6.7e4),
    (10**8, 1): (5.2e21, 4.9e4),
    (10**9, 64): (1.2e23, 1.8e5),
}


@pytest.mark.parametrize(("units", "eps"), TABLE_2)
def test_the_table_of_saturation_is_the_papers(units: int, eps: int) -> None:
    """Its other columns follow: compute = 6 * parameters * tokens, to its two digits."""
    compute, ratio = TABLE_2[units, eps]
    point = saturation(units, eps)
    assert point.is_measured
    assert 6 * point.parameters * point.tokens == pytest.approx(compute, rel=0.08)
    assert point.tokens / point.parameters == pytest.approx(ratio, rel=0.1)


def test_between_the_tables_points_sizes_lie_between_and_beyond_its_edge_they_stay() -> None:
    between = saturation(3 * 10**7, 2)
    corners = [saturation(units, eps).parameters for units in (10**7, 10**8) for eps in (1, 4)]
    assert min(corners) < between.parameters < max(corners) and between.is_measured
    middle = saturation(round(10**7.5), 1).parameters
    assert middle == pytest.approx(math.sqrt(1.7e7 * 1.3e8), rel=1e-6)
    for units, eps in ((400, 1), (10**5, 0.1)):
        beyond = saturation(units, eps)
        assert not beyond.is_measured and beyond.parameters == pytest.approx(4.6e6)


def test_fewer_tokens_take_a_model_between_their_share_and_the_saturated_size() -> None:
    point = saturation(10**7, 4)
    assert point.parameters_for(2 * point.tokens) == (point.parameters, point.parameters)
    least, most = point.parameters_for(point.tokens / 4)
    assert (least, most) == (pytest.approx(point.parameters / 4), point.parameters)
    assert point.parameters_for(1)[0] == 4.5e6, "none smaller was measured"
