import pytest

from dpft.errors import InputError
from dpft.evaluation.metrics.accuracy import accuracy


def test_accuracy_is_the_share_of_right_classes():
    assert accuracy([0, 2, 1, 1, 0], [0, 2, 2, 1, 1]) == pytest.approx(3 / 5)


@pytest.mark.parametrize(("gold", "expected"), [([1, 1], 1.0), ([0, 0], 0.0)])
def test_the_ends_of_the_scale(gold, expected):
    assert accuracy([1, 1], gold) == expected


def test_an_index_may_be_written_as_any_number():
    assert accuracy([1, 0], [1.0, 0.0]) == 1.0


def test_scores_are_refused():
    with pytest.raises(InputError, match="is for classes, whole numbers, got 2.5; .* pearson"):
        accuracy([2.5, 1.0], [2.0, 1.0])
