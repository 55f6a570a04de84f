import pytest

from dpft.evaluation.metrics.base import NotComputed
from dpft.evaluation.metrics.distinct import distinct_1, distinct_2


def test_words_are_counted_over_all_predictions():
    # a b a | a c: three different ones of five
    assert distinct_1(["A b a.", "a, c"], [["x"], ["x"]]) == pytest.approx(3 / 5)


def test_pairs_do_not_cross_predictions():
    # ab bc | ab: two different ones of three
    assert distinct_2(["a b c", "A b!"], [["x"], ["x"]]) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("score", "predictions", "length"),
    [(distinct_1, ["..."], "1 word"), (distinct_2, ["a"], "2 words")],
)
def test_where_no_prediction_is_long_enough_there_is_no_value(score, predictions, length):
    with pytest.raises(NotComputed, match=f"no prediction is {length} long"):
        score(predictions, [["x"]])
