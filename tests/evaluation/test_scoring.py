import math

import pytest

from dpft.errors import InputError
from dpft.evaluation.scoring import compute_metrics

TEXTS = {"predictions": ["a b c d"], "references": [["a b c d"]]}


def test_every_metric_has_a_value_or_a_reason():
    values, reasons = compute_metrics(["bleu", "perplexity", "rouge_l"], {"texts": TEXTS})
    assert values == {"bleu": pytest.approx(100), "rouge_l": pytest.approx(1)}
    assert list(reasons) == ["perplexity"]
    assert "needs the model's likelihoods" in reasons["perplexity"]


def test_a_number_that_json_cannot_hold_is_a_reason():
    columns = {"likelihoods": {"nll_sums": [math.nan], "token_counts": [1]}}
    values, reasons = compute_metrics(["perplexity"], columns)
    assert values == {}
    assert reasons == {"perplexity": "not a finite number (nan)"}


def test_metrics_of_classes_need_labels():
    values, reasons = compute_metrics(["accuracy", "bleu"], {"texts": TEXTS})
    assert list(values) == ["bleu"]
    assert reasons == {"accuracy": "needs labels, a predicted and a right one per input"}


@pytest.mark.filterwarnings("error")
def test_a_constant_prediction_has_no_correlation_and_warns_of_nothing(capfd):
    columns = {"labels": {"predicted": [1.5] * 3, "gold": [0.0, 1.0, 2.0]}}
    values, reasons = compute_metrics(["pearson", "spearman"], columns)
    assert values == {}
    assert set(reasons.values()) == {"not a finite number (nan)"}
    assert capfd.readouterr().err == ""


def test_an_unknown_metric_stops_before_any_is_computed():
    with pytest.raises(InputError, match="got 'blue'"):
        compute_metrics(["bleu", "blue"], {})
