from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpft.evaluation.metrics.rouge_l import longest_common_subsequence, rouge_l, segment_rouge_l

WORDS = st.text("abc", max_size=6)


def test_equal_precision_and_recall_are_the_score():
    # "a c d" is common: P = R = 3/4
    assert segment_rouge_l(list("abcd"), [list("acde")]) == pytest.approx(3 / 4)


def test_recall_weighs_more_than_precision():
    # P = 2/2, R = 2/4, beta² = 1.44: 2.44 * 0.5 / (0.5 + 1.44)
    assert segment_rouge_l(list("ab"), [list("abcd")]) == pytest.approx(1.22 / 1.94)


def test_precision_and_recall_are_maximal_over_references_each_on_its_own():
    # P = 1 against the first, R = 1 against the second, as coco-caption has it
    assert segment_rouge_l(list("abcd"), [list("abcdefgh"), list("ab")]) == pytest.approx(1)


def test_segments_count_alike():
    score = rouge_l(["A b, c d.", "x"], [["a c d e"], ["a", "b"]])
    assert score == pytest.approx((3 / 4 + 0) / 2)


@pytest.mark.parametrize("prediction", ["", "...", "z"])
def test_a_prediction_without_a_common_token_scores_zero(prediction):
    assert rouge_l([prediction], [["a b", ""]]) == 0


@given(WORDS, WORDS)
def test_common_subsequence_is_the_longest(first, second):
    def subsequences(text):
        return {"".join(c) for n in range(len(text) + 1) for c in combinations(text, n)}

    longest = max(len(text) for text in subsequences(first) & subsequences(second))
    assert longest_common_subsequence(first, second) == longest
