import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binomtest

from dpft.audit.attack_curves import (
    clopper_pearson,
    largest_auc,
    largest_true_positive_rate,
    operating_point,
    roc_curve,
)
from dpft.audit.trade_off import ApproximateTradeOff, GaussianTradeOff
from dpft.errors import InputError
from tests.audit.known_mechanisms import gaussian


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
    ("scores", "members", "sentence"),
    [
        ([1.0], [True, False], "1 scores of 2 records"),
        ([1.0, np.nan], [True, False], "not finite"),
        ([1.0, 2.0], [True, True], "members and non-members"),
    ],
)
def test_what_has_no_curve_is_refused(scores, members, sentence):
    with pytest.raises(InputError, match=sentence):
        roc_curve(scores, members)


def test_a_rate_out_of_range_is_refused():
    with pytest.raises(InputError, match="false positive rate must be in"):
        operating_point(roc_curve([1.0, 0.0], [True, False]), 1.5)
