import math

import pytest

from dpft.evaluation.metrics.matthews_correlation import matthews_correlation
from tests.rejections import rejects


def test_two_classes_by_hand():
    # (TP TN - FP FN) / root of (TP + FP)(TP + FN)(TN + FP)(TN + FN), with TP 3, TN 1, FP 2, FN 1
    predicted, gold = [1, 1, 1, 0, 1, 1, 0], [1, 1, 1, 0, 0, 0, 1]
    expected = (3 * 1 - 2 * 1) / math.sqrt(5 * 4 * 3 * 2)
    assert matthews_correlation(predicted, gold) == pytest.approx(expected)


def test_three_classes_by_hand():
    # Gorodkin 2004: (c s - sum p t) / root of (s^2 - sum p^2)(s^2 - sum t^2), c 3 right of s 4,
    # predicted p (1, 1, 2) and true t (1, 2, 1) times
    expected = (3 * 4 - (1 + 2 + 2)) / math.sqrt((16 - 6) * (16 - 6))
    assert matthews_correlation([0, 1, 2, 2], [0, 1, 1, 2]) == pytest.approx(expected)


def test_the_ends_of_the_scale():
    assert matthews_correlation([0, 1, 0], [0, 1, 0]) == pytest.approx(1)
    assert matthews_correlation([0, 1, 0], [1, 0, 1]) == pytest.approx(-1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("gold", [[0, 1], [1, 1]])
def test_a_constant_prediction_scores_zero(gold):
    assert matthews_correlation([1, 1], gold) == 0


def test_scores_are_refused():
    with rejects("task.metrics", 2.5):
        matthews_correlation([2.5, 1.0], [2.0, 1.0])
