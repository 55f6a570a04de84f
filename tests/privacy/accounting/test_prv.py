import pytest
from dp_accounting import get_epsilon_gaussian

from dpft.privacy.accounting import prv
from dpft.privacy.accounting.mechanism import SampledGaussian

E2E = {"sample_rate": 1024 / 42061, "steps": 410, "delta": 1 / (2 * 42061)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise_multiplier", "published"),
    [(1.0747, 2.67), (0.7116, 6.98)],  # Li et al. 2022, Table 7, compositions of 3 and 8 by RDP.
)
def test_reproduces_li_table_7(noise_multiplier, published):
    epsilon = prv.epsilon(SampledGaussian(noise_multiplier=noise_multiplier, **E2E))
    assert epsilon.upper == pytest.approx(published, abs=0.03)
    assert epsilon.estimate == pytest.approx(published, abs=0.03)
    assert epsilon.lower < epsilon.estimate < epsilon.upper


@pytest.mark.parametrize(("noise_multiplier", "steps"), [(5, 10), (0.5, 1), (300, 1000)])
def test_without_sampling_all_three_are_the_closed_form(noise_multiplier, steps):
    mechanism = SampledGaussian(
        noise_multiplier=noise_multiplier, sample_rate=1, steps=steps, delta=1e-6
    )
    exact = get_epsilon_gaussian(noise_multiplier / steps**0.5, 1e-6)  # arXiv 1805.06530
    epsilon = prv.epsilon(mechanism)
    assert epsilon.lower == epsilon.estimate == epsilon.upper == pytest.approx(exact, abs=1e-9)
