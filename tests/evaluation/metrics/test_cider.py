import pytest

from dpft.evaluation.metrics.base import NotComputed
from dpft.evaluation.metrics.cider import cider

pytest.importorskip("pycocoevalcap", reason="needs the metrics extra")


def test_an_equal_text_of_its_own_words_scores_ten():
    # each word occurs with one of two inputs, so all cosines of n = 1..4 are 1
    assert cider(["A b c d!", "e f g h"], [["a b c d"], ["E, f g h"]]) == pytest.approx(10)


def test_cosines_are_averaged_over_n_and_references():
    # first input: equal to one of two references, nothing in common with the other: 10 / 2;
    # second: one word of one, so n = 2, 3, 4 have no n-gram: 10 / 4
    value = cider(["a b c d", "x"], [["a b c d", "p q r s"], ["x"]])
    assert value == pytest.approx((10 / 2 + 10 / 4) / 2)


def test_words_that_all_inputs_have_say_nothing():
    assert cider(["a", "a"], [["a"], ["a"]]) == 0


def test_an_empty_prediction_scores_zero():
    assert cider(["", "..."], [["a b"], ["c"]]) == 0


def test_references_without_words_give_no_value():
    with pytest.raises(NotComputed, match="no reference has a word"):
        cider(["a"], [["..."]])
