import pytest
from dp_accounting import get_epsilon_gaussian
from scipy.special import log_ndtr

from dpft.privacy.accounting import gdp
from dpft.privacy.accounting.mechanism import AccountantError, SampledGaussian

E2E = {"sample_rate": 1024 / 42061, "steps": 410, "delta": 1 / (2 * 42061)}


@pytest.mark.parametrize(
    ("noise_multiplier", "published"),
    [(1.0747, 2.33), (0.7116, 5.51)],  # Li et al. 2022, Table 7, "GDP + CLT".
)
def test_reproduces_li_table_7(noise_multiplier, published):
    epsilon = gdp.epsilon(SampledGaussian(noise_multiplier=noise_multiplier, **E2E))
    assert epsilon.estimate == pytest.approx(published, abs=0.03)


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1, 10, 100])
def test_duality_is_the_gaussian_mechanism(mu):
    # mu-GDP is the Gaussian mechanism of noise 1/mu (Dong et al. 2019, Theorem 2.7).
    exact = get_epsilon_gaussian(1 / mu, 1e-5)
    assert gdp.gaussian_epsilon(mu, 1e-5) == pytest.approx(exact, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("eps", [0.01, 1, 30])
def test_noise_multiplier_inverts_the_estimate(eps):
    noise_multiplier = gdp.noise_multiplier(eps=eps, **E2E)
    mechanism = SampledGaussian(noise_multiplier=noise_multiplier, **E2E)
    assert gdp.epsilon(mechanism).estimate == pytest.approx(eps, rel=1e-6)


def test_noise_too_small_for_the_limit_is_declined():
    with pytest.raises(AccountantError, match="central limit"):
        gdp.epsilon(SampledGaussian(noise_multiplier=0.01, **E2E))


@pytest.mark.parametrize("x", [-1e4, -100.0, -38.5, -30.001, -30.0, -29.999, -8.0, -1.0, 0.0, 3.0])
def test_the_normal_distribution_is_scipys_far_into_the_tail(x: float) -> None:
    assert gdp._log_normal_cdf(x) == pytest.approx(float(log_ndtr(x)), rel=1e-12)
