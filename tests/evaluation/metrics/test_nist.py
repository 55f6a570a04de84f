import math

import pytest

from dpft.evaluation.metrics.nist import nist


def test_nist_of_one_segment_by_hand():
    # reference "a b a c": 4 words, a twice. Information of a: log2(4/2) = 1, of b and c 2 bits;
    # of "a b" and "b a": log2(2/1) = 1 and log2(1/1) = 0; of longer n-grams 0.
    # Prediction "a b a" matches a, b, a: (1 + 2 + 1) / 3, and "a b", "b a": (1 + 0) / 2.
    penalty = math.exp(-math.log(2) / math.log(1.5) ** 2 * math.log(3 / 4) ** 2)
    assert nist(["A b a"], [["a b a c"]]) == pytest.approx((4 / 3 + 1 / 2) * penalty)


def test_two_thirds_of_the_length_halve_the_score():
    # all of 1 word in 3 different ones: log2(3) bits each; "a b" 0 bits
    assert nist(["a b"], [["a b c"]]) == pytest.approx(math.log2(3) / 2)


def test_the_expected_length_is_the_mean_of_all_references_of_the_corpus():
    # references of 2, 2 and 8 words: mean 4, so two inputs of 4 words are just long enough,
    # though the mean over inputs is (2 + 8) / 2 = 5
    long = "a b c d e f g h"
    words = ["y z"] * 2
    # 12 words: a..h once each, y and z twice each; the first matches y, z: 2 log2(12/2) of 8 words,
    # the second a, b, c, d: 4 log2(12); of pairs, "y z" and "a b", "b c", "c d": 0 bits
    value = nist(["y z q q", "a b c d"], [words, [long]])
    assert value == pytest.approx((2 * math.log2(6) + 4 * math.log2(12)) / 8)


def test_a_match_is_clipped_by_the_reference_that_has_it_most():
    # a matches twice of three, by the second reference; 5 words, a three times: log2(5/3) bits;
    # of pairs "a a" twice, once matched: log2(3/1) of 2
    value = nist(["a a a"], [["a b", "a a c"]])
    assert value == pytest.approx(2 * math.log2(5 / 3) / 3 + math.log2(3) / 2)


@pytest.mark.parametrize("prediction", ["", "z"])
def test_nothing_in_common_scores_zero(prediction):
    assert nist([prediction], [["a b"]]) == 0
