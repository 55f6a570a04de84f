import pytest

from dpft.evaluation.metrics.f1 import f1
from tests.rejections import rejects


def test_f1_is_of_class_1():
    # 2 right of 3 predicted, 2 found of 4: precision 2/3, recall 2/4
    predicted, gold = [1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 1, 0]
    assert f1(predicted, gold) == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))


def test_swapping_the_classes_changes_it():
    # precision 1/2, recall 1: 2/3; of class 0 it would be precision 1, recall 1/2
    assert f1([1, 1, 0], [1, 0, 0]) == pytest.approx(2 / 3)
    assert f1([1.0, 1.0, 1.0], [1.0, 0.0, 0.0]) == pytest.approx(2 * (1 / 3) / (4 / 3))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("predicted", "gold", "expected"),
    [([0, 0], [1, 0], 0.0), ([0, 0], [0, 0], 0.0), ([1, 1], [1, 1], 1.0), ([1, 1], [0, 0], 0.0)],
)
def test_a_class_that_is_never_there_is_no_error_and_no_warning(predicted, gold, expected):
    assert f1(predicted, gold) == expected


def test_more_than_two_classes_are_refused():
    with rejects("task.metrics", 2):
        f1([0, 1, 2], [0, 1, 1])


def test_a_prediction_that_is_no_class_counts_as_the_wrong_one():
    # t5.evaluation.metrics.f1_score_with_invalid
    gold = [0, 0, 1, 1]
    assert f1([-1, 0, -1, 1], gold) == f1([1, 0, 0, 1], gold) == 0.5
