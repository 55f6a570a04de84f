"""Whatever may be asked: no crash, no hang, no negative number, no headline missing."""

import math
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpft.errors import InputError
from dpft.privacy.accounting.accountants import evaluate
from dpft.privacy.accounting.mechanism import AccountantError, SampledGaussian
from dpft.privacy.accounting.summary import account


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    """Return numbers spread evenly over the orders of magnitude."""
    return st.floats(low, high).map(lambda exponent: 10**exponent)


MECHANISMS = st.builds(
    SampledGaussian,
    noise_multiplier=powers(-1, 2),
    sample_rate=st.one_of(powers(-7, 0), st.just(1.0)),
    steps=powers(0, 6).map(int),
    delta=powers(-12, -2),
)


LIMIT = 60.0
"""Seconds of processor time; the slowest known mechanism takes 12."""


def check(mechanism: SampledGaussian) -> None:
    began = time.process_time()
    try:
        report = account(mechanism)
    except InputError:
        for name in ("rdp", "pld", "prv"):  # answers are kept: no second wait
            with pytest.raises(AccountantError):
                evaluate(name, mechanism)
        return
    finally:
        assert time.process_time() - began < LIMIT
    assert report.accountant in ("rdp", "pld", "prv")
    assert 0 <= report.epsilon < math.inf
    for answer in report.epsilons.values():
        values = [answer] if isinstance(answer, float) else vars(answer).values()
        assert all(isinstance(value, str) or value >= 0 for value in values)


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(mechanism=MECHANISMS)
@example(SampledGaussian(noise_multiplier=0.1, sample_rate=1.0, steps=10**6, delta=1e-12))
@example(SampledGaussian(noise_multiplier=0.1, sample_rate=1.0, steps=10**6, delta=1e-2))
@example(SampledGaussian(noise_multiplier=0.3, sample_rate=1.0, steps=10**4, delta=1e-5))
@example(SampledGaussian(noise_multiplier=0.1, sample_rate=1e-4, steps=10**6, delta=1e-5))
@example(SampledGaussian(noise_multiplier=0.02, sample_rate=1e-9, steps=1, delta=1e-12))
@example(SampledGaussian(noise_multiplier=0.3, sample_rate=0.3, steps=10**5, delta=1e-5))
@example(SampledGaussian(noise_multiplier=5.0, sample_rate=0.1, steps=10**6, delta=1e-12))
@example(SampledGaussian(noise_multiplier=50.0, sample_rate=1e-7, steps=10**6, delta=1e-5))
@example(SampledGaussian(noise_multiplier=50.0, sample_rate=0.01, steps=1, delta=1e-2))
def test_any_mechanism_has_a_headline_that_is_no_less_than_zero(mechanism):
    check(mechanism)
