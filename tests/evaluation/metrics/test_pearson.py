import math

import pytest

from dpft.evaluation.metrics.pearson import pearson


def test_pearson_by_hand():
    # deviations (-1, 0, 1) and (-4/3, 5/3, -1/3): covariance 1, squares 2 and 42/9
    assert pearson([1, 2, 3], [1, 4, 2]) == pytest.approx(1 / math.sqrt(2 * 42 / 9))


def test_scale_and_offset_do_not_matter_but_the_sign_does():
    assert pearson([0.1, 0.2, 0.4], [3, 4, 6]) == pytest.approx(1)
    assert pearson([0.1, 0.2, 0.4], [-3, -4, -6]) == pytest.approx(-1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("predicted", "gold"),
    [([2, 2, 2], [1, 2, 3]), ([1, 2, 3], [2, 2, 2]), ([1], [1]), ([math.nan, 1, 2], [1, 2, 3])],
)
def test_what_does_not_vary_or_is_broken_has_no_correlation_and_no_warning(predicted, gold):
    assert math.isnan(pearson(predicted, gold))
