import pytest

from dpft.evaluation.metrics.rouge_score_l import METRIC, rouge_score_l

pytest.importorskip("rouge_score", reason="needs the metrics extra")


def test_rouge_l_by_hand():
    # "a c" is the longest common subsequence: P = 2/3, R = 2/4, and beta is 1
    assert rouge_score_l(["a b c"], [["a x c y"]]) == pytest.approx(4 / 7)


def test_it_stands_under_the_key_that_e2es_stands_under():
    assert METRIC.reported_as == "rouge_l"
