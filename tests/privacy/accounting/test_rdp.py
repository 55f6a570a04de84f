from itertools import product

import dp_accounting
import numpy as np
import pytest

from dpft.privacy.accounting import rdp
from dpft.privacy.accounting.mechanism import Composition, SampledGaussian
from tests.slowness import slow_but

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


@pytest.mark.parametrize(
    ("noise_multiplier", "sample_rate"),
    slow_but(
        [(0.6, 1e-8), (1.0, 1e-4), (1e3, 1.0)],
        product([0.1, 0.3, 0.6, 1.0, 3.0, 1e3], [0.3, 1e-2, 1e-8, 1e-4, 0.999, 1.0]),
    ),
)
def test_every_orders_divergence_is_dp_accountings(noise_multiplier, sample_rate):
    """Those whose series is too long for it, which is infinity, are so here."""
    mechanism = SampledGaussian(
        noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=1, delta=0.5
    )
    theirs = dp_accounting.rdp.RdpAccountant(rdp.ORDERS).compose(mechanism.event()).rdp
    ours = rdp.curve(mechanism)
    assert np.array_equal(np.isinf(ours), np.isinf(theirs))
    is_finite = np.isfinite(theirs)
    # Below 1e-12 they lost their digits to rounding, and ours is the next whole order's.
    near = np.isclose(ours[is_finite], theirs[is_finite], rtol=1e-9, atol=1e-14)
    assert (near | (theirs[is_finite] < 1e-11) & (ours[is_finite] < 1e-11)).all()


def test_no_divergence_is_lost_to_rounding():
    """Without its guard one of them is below 0, for which the conversion gives epsilon 0.

    Of so little noise in A, a (a - 1) q^2 / (2 noise^2) is all (Mironov et al. 2019, section 3.3).
    """
    mechanism = SampledGaussian(noise_multiplier=1e3, sample_rate=1e-8, steps=1, delta=1e-15)
    ours, orders = rdp.curve(mechanism), np.array(rdp.ORDERS)
    least = orders * (mechanism.accounted_rate / 1e3) ** 2 / 2
    assert (ours >= least * (1 - 1e-9)).all()
    assert ours[orders == 64] == pytest.approx(least[orders == 64], rel=1e-3, abs=0)
    assert (np.diff(ours) >= 0).all()
    far = SampledGaussian(noise_multiplier=1e5, sample_rate=1e-8, steps=1000, delta=1e-12)
    assert dp_accounting.rdp.RdpAccountant(rdp.ORDERS).compose(far.event()).get_epsilon(1e-12) == 0
    assert rdp.epsilon(far).upper > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_a_composition_costs_what_dp_accounting_says():
    parts = [
        SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=steps, delta=1e-6)
        for noise, rate, steps in [(0.8, 0.01, 100), (2.0, 0.2, 7), (5.0, 1.0, 3)]
    ]
    theirs = dp_accounting.rdp.RdpAccountant(rdp.ORDERS)
    for part in parts:
        theirs.compose(part.event())
    composed = rdp.epsilon(Composition(parts=tuple(parts))).upper
    assert composed == pytest.approx(theirs.get_epsilon(1e-6), rel=1e-9)


def test_more_orders_tighten_small_epsilons():
    mechanism = SampledGaussian(noise_multiplier=50, sample_rate=1e-3, steps=10, delta=1e-6)
    # dp_accounting's default orders end at 1024, where the conversion alone costs
    # log(1/delta) / 1023 - log(1024) / 1023 = 0.0067.
    assert rdp.epsilon(mechanism).upper < 0.0067
