import math

import pytest

from dpft.evaluation.metrics.correlation import pearson, spearman


def test_pearson_by_hand():
    # deviations (-1, 0, 1) and (-4/3, 5/3, -1/3): covariance 1, squares 2 and 42/9
    assert pearson([1, 2, 3], [1, 4, 2]) == pytest.approx(1 / math.sqrt(2 * 42 / 9))


def test_pearson_does_not_depend_on_scale_and_offset_but_on_the_sign():
    assert pearson([0.1, 0.2, 0.4], [3, 4, 6]) == pytest.approx(1)
    assert pearson([0.1, 0.2, 0.4], [-3, -4, -6]) == pytest.approx(-1)


def test_spearman_by_hand():
    # ranks differ by d = (0, 1, 1, 0): 1 - 6 sum d^2 / n(n^2 - 1)
    assert spearman([1, 5, 7, 100], [0.1, 0.3, 0.2, 0.9]) == pytest.approx(1 - 6 * 2 / (4 * 15))


def test_for_spearman_equal_scores_share_the_mean_of_their_ranks():
    # ranks (1.5, 1.5, 3) and (1, 2, 3): deviations (-.5, -.5, 1) and (-1, 0, 1)
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(1.5 / math.sqrt(1.5 * 2))


def test_for_spearman_only_the_order_matters():
    assert spearman([1, 2, 3], [1, 10, 1000]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, -5]) == pytest.approx(-1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("score", [pearson, spearman])
@pytest.mark.parametrize(
    ("predicted", "gold"),
    [([2, 2, 2], [1, 2, 3]), ([1, 2, 3], [2, 2, 2]), ([1], [1]), ([math.nan, 1, 2], [1, 2, 3])],
)
def test_what_does_not_vary_or_is_broken_has_no_correlation_and_no_warning(score, predicted, gold):
    assert math.isnan(score(predicted, gold))
