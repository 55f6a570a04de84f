"""For all settings: more steps or a larger batch cost more, more noise or a larger delta less."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpft.privacy.accounting import gdp, rdp
from dpft.privacy.accounting.mechanism import SampledGaussian

mechanisms = st.builds(
    SampledGaussian,
    noise_multiplier=st.floats(0.4, 20),
    sample_rate=st.floats(1e-6, 1),
    steps=st.integers(1, 10**6),
    delta=st.floats(1e-12, 0.1),
)
FACTORS = st.floats(1, 4)


def changed(mechanism: SampledGaussian, **values: float) -> SampledGaussian:
    return SampledGaussian(**(vars(mechanism) | values))


@pytest.mark.slow
@given(mechanisms, FACTORS)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_rdp_epsilon_is_monotonic(mechanism: SampledGaussian, factor: float) -> None:
    dearer = (
        changed(mechanism, steps=int(mechanism.steps * factor)),
        changed(mechanism, sample_rate=min(1.0, mechanism.sample_rate * factor)),
        changed(mechanism, noise_multiplier=mechanism.noise_multiplier / factor),
        changed(mechanism, delta=mechanism.delta / factor),
    )
    epsilon = rdp.epsilon(mechanism).upper
    assert epsilon is not None and epsilon >= 0
    for other in dearer:
        upper = rdp.epsilon(other).upper
        assert upper is not None and upper >= epsilon * (1 - 1e-9)


@given(mechanisms, FACTORS)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_gdp_epsilon_is_monotonic(mechanism: SampledGaussian, factor: float) -> None:
    epsilon = gdp.epsilon(mechanism).estimate
    more_steps = gdp.epsilon(changed(mechanism, steps=int(mechanism.steps * factor))).estimate
    less_noise = changed(mechanism, noise_multiplier=mechanism.noise_multiplier / factor)
    assert epsilon is not None and more_steps is not None
    assert more_steps >= epsilon * (1 - 1e-9)
    other = gdp.epsilon(less_noise).estimate
    assert other is not None and other >= epsilon * (1 - 1e-9)
