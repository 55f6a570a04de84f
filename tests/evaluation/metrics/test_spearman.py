import math

import pytest

from dpft.evaluation.metrics.spearman import spearman


def test_spearman_by_hand():
    # ranks differ by d = (0, 1, 1, 0): 1 - 6 sum d^2 / n(n^2 - 1)
    assert spearman([1, 5, 7, 100], [0.1, 0.3, 0.2, 0.9]) == pytest.approx(1 - 6 * 2 / (4 * 15))


def test_equal_scores_share_the_mean_of_their_ranks():
    # ranks (1.5, 1.5, 3) and (1, 2, 3): deviations (-.5, -.5, 1) and (-1, 0, 1)
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(1.5 / math.sqrt(1.5 * 2))


def test_only_the_order_matters():
    assert spearman([1, 2, 3], [1, 10, 1000]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, -5]) == pytest.approx(-1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("predicted", "gold"),
    [([2, 2, 2], [1, 2, 3]), ([1, 2, 3], [2, 2, 2]), ([1], [1]), ([math.nan, 1, 2], [1, 2, 3])],
)
def test_what_does_not_vary_or_is_broken_has_no_correlation_and_no_warning(predicted, gold):
    assert math.isnan(spearman(predicted, gold))
