import math

import pytest

from dpft.evaluation.metrics.bleu import bleu


def test_bleu_of_one_segment_by_hand():
    # n-grams of "a b c d e" in "a b c d f": 4/5, 3/4, 2/3, 1/2; equal lengths, so no penalty
    expected = 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4)
    assert bleu(["a b c d e"], [["a b c d f"]]) == pytest.approx(expected)


def test_counts_are_summed_over_the_corpus_with_ragged_references():
    # the second segment equals its second reference: 4/4, 3/3, 2/2, 1/1 join the counts above
    expected = 100 * (8 / 9 * 6 / 7 * 4 / 5 * 2 / 3) ** (1 / 4)
    references = [["a b c d f"], ["x y", "f g h i"]]
    assert bleu(["a b c d e", "f g h i"], references) == pytest.approx(expected)


def test_a_missing_reference_is_not_an_empty_one():
    # each segment is 4 of 10 words: brevity exp(1 - 20/8). An empty text in the place of the first
    # segment's absent second reference would be the closest in length.
    long = "a b c d e f g h i j"
    expected = 100 * math.exp(1 - 20 / 8)
    assert bleu(["a b c d", "a b c d"], [[long], [long, long]]) == pytest.approx(expected)


def test_bleu_ignores_case():
    assert bleu(["The Punter IS here ."], [["the punter is here."]]) == pytest.approx(100)


def test_empty_predictions_score_zero():
    assert bleu(["", ""], [["a b c d"], ["a"]]) == 0
