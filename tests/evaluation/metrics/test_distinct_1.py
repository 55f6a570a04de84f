import pytest

from dpft.evaluation.metrics.distinct_1 import distinct_1


def test_words_are_counted_over_all_predictions():
    # a b a | a c: three different ones of five
    assert distinct_1(["A b a.", "a, c"], [["x"], ["x"]]) == pytest.approx(3 / 5)
