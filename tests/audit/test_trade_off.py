import math

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from scipy.special import ndtr
from scipy.stats import binomtest

from dpft.audit.trade_off import (
    GaussianTradeOff,
    PiecewiseTradeOff,
    clopper_pearson,
    envelope,
    largest_auc,
    largest_true_positive_rate,
    mechanism_trade_off,
    operating_point,
    roc_curve,
)
from dpft.privacy.accounting import pld
from dpft.privacy.accounting.mechanism import Composition, SampledGaussian
from tests.audit.known_mechanisms import ApproximateTradeOff, gaussian
from tests.rejections import rejects
from tests.slowness import slow

ALPHAS = np.linspace(0, 1, 2001)
E2E = {"sample_rate": 1024 / 42061, "delta": 1 / (2 * 42061)}


def steps(noise_multiplier=1.0, sample_rate=1.0, count=1):
    return SampledGaussian(
        noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=count, delta=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("noise_multiplier", [0.5, 1.0, 10.0])
def test_one_unsampled_step_has_the_gaussian_curve_from_below(noise_multiplier):
    found = mechanism_trade_off(steps(noise_multiplier))(ALPHAS)
    exact = GaussianTradeOff(1 / noise_multiplier)(ALPHAS)
    assert np.all(found <= exact + 1e-15)
    assert np.max(exact - found) < 2e-6


@pytest.mark.slow
def test_unsampled_steps_compose_to_one_gaussian():
    # Dong et al. 2019, Corollary 3.3: k steps of mu are one of sqrt(k) mu
    found = mechanism_trade_off(steps(4.0, count=16))(ALPHAS)
    exact = GaussianTradeOff(1.0)(ALPHAS)
    assert np.all(found <= exact + 1e-15)
    assert np.max(exact - found) < 1e-4


@pytest.mark.slow
def test_parts_are_composed_in_one_curve():
    parts = Composition(parts=(steps(4.0, count=8), steps(2.0, count=2)))
    # 8 / 16 + 2 / 4 = 1
    exact = GaussianTradeOff(1.0)(ALPHAS)
    assert np.max(np.abs(exact - mechanism_trade_off(parts)(ALPHAS))) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("sample_rate", [0.01, *slow((0.5,))])
def test_a_sampled_step_has_the_lower_of_both_directions(sample_rate):
    # With the record: N(1, 1) at the sample rate, else N(0, 1); without it: N(0, 1). The
    # likelihood ratio grows with the output, so tests by thresholds are the best there are.
    from scipy.special import ndtr

    thresholds = np.linspace(-8, 9, 20_001)
    alarms = ndtr(-thresholds)
    missed = sample_rate * ndtr(thresholds - 1) + (1 - sample_rate) * ndtr(thresholds)
    found = mechanism_trade_off(steps(1.0, sample_rate))
    assert np.all(found(alarms) <= missed + 1e-12)
    assert np.all(found(missed) <= alarms + 1e-12)
    # and touches one of the two or the line that bridges them where they cross
    crossing = np.argmin(np.abs(alarms - missed))
    steep = alarms < alarms[crossing] / 20
    assert np.max(missed[steep] - found(alarms[steep])) < 1e-4


@pytest.mark.slow
def test_the_tangent_of_a_runs_epsilon_and_delta_touches_its_curve():
    mechanism = SampledGaussian(noise_multiplier=1.0747, steps=410, **E2E)
    slope = math.exp(pld.epsilon(mechanism).upper)
    alphas = np.geomspace(1e-9, 1, 20_001)
    above = mechanism_trade_off(mechanism)(alphas) - (1 - mechanism.delta - slope * alphas)
    assert -1e-9 < above.min() < 1e-8


@pytest.mark.parametrize(
    "curve",
    [
        GaussianTradeOff(0.3),
        GaussianTradeOff(4.0),
        ApproximateTradeOff(epsilon=1.0, delta=0.01),
        ApproximateTradeOff(epsilon=0.0),
        steps(20.0),
        *slow((SampledGaussian(noise_multiplier=0.7, steps=100, **E2E),)),
    ],
    ids=lambda curve: type(curve).__name__,
)
def test_curves_are_symmetric_convex_falling_and_no_better_than_a_blind_test(curve):
    if isinstance(curve, SampledGaussian):
        curve = mechanism_trade_off(curve)
    values = curve(ALPHAS)
    assert np.all(np.diff(values) <= 1e-15)
    assert np.all(np.diff(values, 2) >= -1e-12)
    assert np.all(values <= 1 - ALPHAS + 1e-15)
    assert values[-1] == 0.0
    inside = ALPHAS[(values > 0) & (values < values[0])]
    assert np.max(np.abs(curve(curve(inside)) - inside)) < 1e-6
    assert float(curve(0.25)) == pytest.approx(float(curve(np.array([0.25]))[0]), abs=1e-15)


def test_gaussian_delta_and_curve_are_dual():
    # the tangent of slope -e^eps touches the curve (Dong et al. 2019, Proposition 2.12)
    alphas = np.linspace(0, 1, 200_001)
    for delta in (1e-2, 1e-4):
        eps = get_epsilon_gaussian(1.0, delta)
        above = GaussianTradeOff(1.0)(alphas) - (1 - delta - math.exp(eps) * alphas)
        assert abs(above.min()) < 1e-5


def test_a_single_epsilon_and_delta_give_their_lowest_curve():
    found = envelope(np.array([0.0, 1.0]), np.array([(math.e - 1) / (math.e + 1), 0.0]))
    assert np.allclose(found(ALPHAS), ApproximateTradeOff(epsilon=1.0)(ALPHAS), atol=1e-12)


def test_tangents_that_touch_nowhere_change_nothing():
    epsilons = np.array([0.0, 0.5, 1.0, 1.5])
    # the second delta is above the line between its neighbors; the last gains nothing
    loose = envelope(epsilons, np.array([0.3, 0.299, 0.01, 0.01]))
    tight = envelope(epsilons[[0, 2]], np.array([0.3, 0.01]))
    assert isinstance(loose, PiecewiseTradeOff)
    assert np.allclose(loose(ALPHAS), tight(ALPHAS), atol=1e-15)


def test_a_curve_by_hand():
    # by rectangles: a quarter of the non-members wide each
    scores = [4, 6, 7, 0, 1, 2, 3, 5]
    members = [True, True, True, True, False, False, False, False]
    curve = roc_curve(scores, members)
    assert curve.false_positives == (0, 0, 0, 1, 1, 2, 3, 4, 4)
    assert curve.true_positives == (0, 1, 2, 2, 3, 3, 3, 3, 4)
    assert (curve.members, curve.non_members) == (4, 4)
    assert curve.auc == (2 + 3 + 3 + 3) / 16


def test_equal_scores_are_called_alike():
    curve = roc_curve([1.0, 1.0, 1.0, 0.0], [True, False, True, False])
    assert curve.false_positives == (0, 1, 2)
    assert curve.true_positives == (0, 2, 2)
    assert curve.auc == pytest.approx(0.5 * 1.0 / 2 + 0.5)
    assert roc_curve(np.zeros(10), np.arange(10) < 4).auc == 0.5


def test_the_area_is_the_chance_that_a_member_scores_higher():
    scores, members = gaussian(1.0, 400, np.random.default_rng(1))
    inside, outside = scores[members][:, None], scores[~members]
    assert roc_curve(scores, members).auc == pytest.approx(np.mean(inside > outside))


@pytest.mark.parametrize("limit", [0.01, 0.1])
def test_the_best_attack_on_a_gaussian_is_at_its_bound(limit):
    scores, members = gaussian(2.0, 100_000, np.random.default_rng(2))
    found = operating_point(roc_curve(scores, members), limit, confidence=0.999)
    assert found.false_positive_rate.rate <= limit
    bound = largest_true_positive_rate(GaussianTradeOff(2.0), limit)
    # the threshold's own false positive rate is uncertain too
    assert found.true_positive_rate.rate == pytest.approx(bound, abs=0.03)
    assert found.true_positive_rate.lower < found.true_positive_rate.rate
    assert found.true_positive_rate.rate < found.true_positive_rate.upper


def test_a_limit_below_one_record_allows_no_false_alarm():
    scores, members = gaussian(3.0, 200, np.random.default_rng(3))
    found = operating_point(roc_curve(scores, members), 0.001)
    assert found.false_positive_rate.rate == 0.0
    highest = scores[~members].max()
    assert found.true_positive_rate.rate == np.mean(scores[members] > highest)


@pytest.mark.parametrize(("count", "total"), [(0, 50), (3, 50), (50, 50), (1, 1)])
def test_intervals_are_those_of_clopper_and_pearson(count, total):
    found = clopper_pearson(count, total, 0.9)
    exact = binomtest(count, total).proportion_ci(0.9, method="exact")
    assert (found.lower, found.upper) == pytest.approx((exact.low, exact.high), abs=1e-6)


def test_what_a_curve_allows_at_most():
    # e^1 alpha + delta at few false alarms
    allowed = largest_true_positive_rate(ApproximateTradeOff(epsilon=1.0, delta=0.01), 0.001)
    assert allowed == pytest.approx(0.01 + np.e * 0.001)
    assert largest_auc(GaussianTradeOff(2.0)) == pytest.approx(ndtr(np.sqrt(2)), abs=1e-5)
    assert largest_auc(GaussianTradeOff(0.0)) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("scores", "members", "key"),
    [
        ([1.0], [True, False], "scores"),
        ([1.0, np.nan], [True, False], "scores"),
        ([1.0, 2.0], [True, True], "members"),
    ],
)
def test_scores_without_a_curve_are_rejected(scores, members, key):
    with rejects(key):
        roc_curve(scores, members)


def test_a_rate_out_of_range_is_refused():
    with rejects("limit", 1.5):
        operating_point(roc_curve([1.0, 0.0], [True, False]), 1.5)
