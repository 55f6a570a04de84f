import pytest

from dpft.evaluation.metrics.rouge_1 import rouge_1

pytest.importorskip("rouge_score", reason="needs the metrics extra")


def test_rouge_1_by_hand():
    # a, b of three and of four words: P = 2/3, R = 2/4
    assert rouge_1(["a b c"], [["b a x y"]]) == pytest.approx(4 / 7)
