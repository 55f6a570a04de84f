import pytest

from dpft.evaluation.metrics.rouge_2 import rouge_2

pytest.importorskip("rouge_score", reason="needs the metrics extra")


def test_rouge_2_by_hand():
    # "a b" of two and of three pairs: P = 1/2, R = 1/3
    assert rouge_2(["a b c"], [["x a b y"]]) == pytest.approx(2 / 5)
