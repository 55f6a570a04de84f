import pytest

pytest.importorskip("rouge_score", reason="needs the metrics extra")

from dpft.evaluation.metrics.rouge import best_rouge  # noqa: E402


def test_words_are_stemmed_and_lower_cased():
    assert best_rouge("rouge1", ["Playing games!"], [["played game"]]) == pytest.approx(1)


def test_the_reference_of_the_best_f_measure_counts_and_inputs_count_alike():
    # 1/2 and 1 for the first input; the second shares nothing
    value = best_rouge("rouge1", ["a b", "c"], [["a x", "b a"], ["d"]])
    assert value == pytest.approx((1 + 0) / 2)


def test_an_empty_prediction_scores_zero():
    assert best_rouge("rougeL", [""], [["a"]]) == 0
