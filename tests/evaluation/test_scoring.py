import math
import sys

import pytest

from dpft.errors import InputError
from dpft.evaluation.eval_config import MetricsConfig
from dpft.evaluation.evaluate import compute_metrics

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


LIBRARIES = ("rouge_score", "nltk", "pycocoevalcap", "bert_score")


@pytest.fixture
def without_the_extra(monkeypatch):
    """Makes the libraries of the extra impossible to import, and Java impossible to find."""
    for name in [name for name in sys.modules if name.partition(".")[0] in LIBRARIES]:
        monkeypatch.delitem(sys.modules, name)
    for library in LIBRARIES:
        monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setenv("PATH", "")


def test_without_the_extra_and_java_the_rest_is_computed(without_the_extra):
    names = ["bleu", "meteor", "cider", "rouge_1", "rouge_2", "rouge_score_l", "bertscore"]
    settings = MetricsConfig(bertscore_model=".")
    values, reasons = compute_metrics([*names, "bleurt", "nist"], {"texts": TEXTS}, settings)
    assert list(values) == ["bleu", "nist"]
    assert set(reasons) == {
        "meteor", "cider", "rouge_1", "rouge_2", "rouge_l", "bertscore", "bleurt"
    }  # fmt: skip
    assert reasons.pop("meteor") == "needs Java; install a Java runtime (8 or newer)"
    assert "set metrics.bleurt_model=DIR" in reasons.pop("bleurt")
    assert set(reasons.values()) == {"needs the extra: pip install 'dpft[metrics]'"}


def test_a_value_stands_under_the_metrics_key():
    values, _ = compute_metrics(["token_f1"], {"texts": TEXTS})
    assert values == {"f1": pytest.approx(1)}


def test_a_metric_without_a_value_gives_its_reason():
    columns = {"likelihoods": {"nll_sums": [0.0], "token_counts": [0]}}
    values, reasons = compute_metrics(["perplexity"], columns)
    assert (values, reasons) == ({}, {"perplexity": "the references have no tokens"})
