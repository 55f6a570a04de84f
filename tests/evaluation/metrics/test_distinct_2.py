import pytest

from dpft.evaluation.metrics.distinct_2 import distinct_2


def test_pairs_do_not_cross_predictions():
    # ab bc | ab: two different ones of three
    assert distinct_2(["a b c", "A b!"], [["x"], ["x"]]) == pytest.approx(2 / 3)
