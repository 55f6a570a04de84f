from importlib.util import find_spec
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpft.evaluation.metrics.base import METRICS
from dpft.evaluation.metrics.rouge import (
    best_rouge,
    longest_common_subsequence,
    rouge_1,
    rouge_2,
    rouge_l,
    rouge_score_l,
    segment_rouge_l,
)

needs_rouge_score = pytest.mark.skipif(
    find_spec("rouge_score") is None, reason="needs the metrics extra"
)
WORDS = st.text("abc", max_size=6)


@pytest.mark.slow
@needs_rouge_score
def test_rouge_1_by_hand():
    # a, b of three and of four words: P = 2/3, R = 2/4
    assert rouge_1(["a b c"], [["b a x y"]]) == pytest.approx(4 / 7)


@needs_rouge_score
def test_rouge_2_by_hand():
    # "a b" of two and of three pairs: P = 1/2, R = 1/3
    assert rouge_2(["a b c"], [["x a b y"]]) == pytest.approx(2 / 5)


@needs_rouge_score
def test_rouge_score_l_by_hand():
    # "a c" is the longest common subsequence: P = 2/3, R = 2/4, and beta is 1
    assert rouge_score_l(["a b c"], [["a x c y"]]) == pytest.approx(4 / 7)


def test_rouge_score_l_stands_under_the_key_that_rouge_l_stands_under():
    assert METRICS.named("rouge_score_l").reported_as == METRICS.named("rouge_l").reported_as


@needs_rouge_score
def test_words_are_stemmed_and_lower_cased():
    assert best_rouge("rouge1", ["Playing games!"], [["played game"]]) == pytest.approx(1)


@needs_rouge_score
def test_the_reference_of_the_best_f_measure_counts_and_inputs_count_alike():
    # 1/2 and 1 for the first input; the second shares nothing
    value = best_rouge("rouge1", ["a b", "c"], [["a x", "b a"], ["d"]])
    assert value == pytest.approx((1 + 0) / 2)


@needs_rouge_score
def test_an_empty_prediction_scores_zero():
    assert best_rouge("rougeL", [""], [["a"]]) == 0


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


@pytest.mark.slow
@given(WORDS, WORDS)
def test_common_subsequence_is_the_longest(first, second):
    def subsequences(text):
        return {"".join(c) for n in range(len(text) + 1) for c in combinations(text, n)}

    longest = max(len(text) for text in subsequences(first) & subsequences(second))
    assert longest_common_subsequence(first, second) == longest
