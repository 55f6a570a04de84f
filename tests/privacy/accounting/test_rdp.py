import logging

import pytest

from dpft.privacy.accounting import rdp
from dpft.privacy.accounting.mechanism import SampledGaussian

PONOMAREVA = {
    "sample_rate": 8192 / 5240387307,
    "steps": 100_000,
    "delta": 1 / 5240387307,
}


@pytest.mark.parametrize(
    ("noise_multiplier", "published"),
    # Ponomareva et al. 2022, Table 5.
    [(0.40, 6.0573), (0.35, 8.6898), (0.30, 13.4586)],
)
def test_reproduces_ponomareva_table_5(noise_multiplier, published):
    mechanism = SampledGaussian(noise_multiplier=noise_multiplier, **PONOMAREVA)
    assert rdp.epsilon(mechanism).upper == pytest.approx(published, abs=1e-3)


def test_excluded_orders_are_not_logged(caplog):
    with caplog.at_level(logging.WARNING):
        rdp.epsilon(SampledGaussian(noise_multiplier=0.1, **PONOMAREVA))
    assert "Excluding" not in caplog.text


def test_more_orders_tighten_small_epsilons():
    mechanism = SampledGaussian(noise_multiplier=50, sample_rate=1e-3, steps=10, delta=1e-6)
    # dp_accounting's default orders end at 1024, where the conversion alone costs
    # log(1/delta) / 1023 - log(1024) / 1023 = 0.0067.
    assert rdp.epsilon(mechanism).upper < 0.0067
