import math
import sys

import pytest

from dpft.privacy.accounting.mechanism import (
    RATE_MARGIN,
    AccountantError,
    Epsilon,
    SampledGaussian,
    delta_within_rounding,
    rounding_slack,
)
from tests.rejections import rejects

VALID = {"noise_multiplier": 1.0, "sample_rate": 0.01, "steps": 10, "delta": 1e-5}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("noise_multiplier", value) for value in (0, -1, math.inf, math.nan)],
        *[("sample_rate", value) for value in (0, -0.1, 1.7, math.nan)],
        *[("steps", value) for value in (0, -3, 2.5)],
        *[("delta", value) for value in (0, 1, -1e-5, math.nan)],
    ],
)
def test_a_value_out_of_range_is_refused_by_name(key, value):
    with rejects(key):
        SampledGaussian(**{**VALID, key: value})


def test_the_event_is_a_poisson_sampled_gaussian_repeated():
    event = SampledGaussian(**VALID).event()
    assert event.count == 10
    assert event.event.sampling_probability == 0.01 * (1 + RATE_MARGIN)
    assert event.event.event.noise_multiplier == 1.0


def test_negative_bounds_become_zero():
    # PRV at rate 0.01, noise 50, one step, delta 0.01 answers -0.020, -0.010, -4e-5.
    epsilon = Epsilon(lower=-0.020, estimate=-0.010, upper=-4e-5)
    assert (epsilon.lower, epsilon.estimate, epsilon.upper) == (0, 0, 0)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_an_infinite_bound_is_no_answer(value):
    with pytest.raises(AccountantError, match="no finite upper"):
        Epsilon(upper=value)


def test_rounding_takes_nothing_noticeable_from_delta_in_usual_settings():
    mechanism = SampledGaussian(**{**VALID, "steps": 410})
    delta = delta_within_rounding(mechanism, sys.float_info.epsilon)
    assert 1e-5 * (1 - 1e-7) < delta < 1e-5


def test_a_delta_below_the_rounding_error_is_refused():
    mechanism = SampledGaussian(**{**VALID, "steps": 10**6, "delta": 1e-12})
    with pytest.raises(AccountantError, match="rounding error"):
        delta_within_rounding(mechanism, sys.float_info.epsilon)


@pytest.mark.parametrize("steps", [1, 410, 10**6])
def test_rounding_is_allowed_three_times_the_most_that_was_seen(steps):
    """1.25 steps times the precision, against compositions in 80-bit arithmetic."""
    seen = 1.25 * steps * sys.float_info.epsilon
    assert rounding_slack(steps, sys.float_info.epsilon) >= 3 * seen
    mechanism = SampledGaussian(**{**VALID, "steps": steps})
    assert delta_within_rounding(mechanism, sys.float_info.epsilon) <= mechanism.delta - 3 * seen
