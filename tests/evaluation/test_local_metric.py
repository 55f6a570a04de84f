import tempfile
from dataclasses import replace

import evaluate
import pytest

from dpft.evaluation.eval_config import MetricsConfig
from dpft.evaluation.local_metric import LocalMetric, compute
from dpft.evaluation.metrics.base import METRICS

COLUMNS = {
    "texts": {"predictions": ["a b c d", ""], "references": [["a b c e"], ["x", "y é"]]},
    "likelihoods": {"nll_sums": [3.5, 2.25], "token_counts": [2, 1]},
    "next_tokens": {"right_counts": [1, 0], "token_counts": [2, 1]},
    "labels": {"predicted": [0, 1, 1, 1], "gold": [0.0, 1.0, 0.0, 1.0]},
    "pairs": {"chosen": [-1.0, -5.0], "rejected": [-2.0, -3.0], "tokens": [2, 2]},
    "rankings": {"ranked": [[2, 0, 1, 3, 4, 5], [5, 4, 3, 2, 1, 0]], "gold": [4.0, 0.0]},
    "attributes": {"predicted": [[0.0, 1.0], [1.0, 1.0]], "gold": [[0.0, 1.0], [0.0, 1.0]]},
}


# METEOR's Java takes seconds; models of a metric's own are in the metric's tests
QUICK = sorted(set(METRICS.entries()) - {"meteor", "meteor_plain", "bertscore", "bleurt"})


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_the_metric_class_computes_what_the_function_does(name):
    spec = METRICS.named(name)
    reason = spec.missing(MetricsConfig())
    if reason is not None:
        pytest.skip(reason)
    columns = COLUMNS[spec.inputs]
    assert compute(spec, columns) == spec.score(**columns)


def test_a_metric_is_a_local_evaluate_metric(tmp_path):
    metric = LocalMetric(METRICS.named("bleu"), keep_in_memory=True, cache_dir=tmp_path)
    assert isinstance(metric, evaluate.Metric)
    assert "0..100" in metric.description


def test_private_text_is_not_written_to_a_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("evaluate.config.HF_METRICS_CACHE", str(tmp_path / "cache"))
    seen = []

    def spying_score(predictions, references):
        seen.extend(path for path in tmp_path.rglob("*") if path.is_file())
        return 0.0

    compute(replace(METRICS.named("chrf"), score=spying_score), COLUMNS["texts"])
    assert seen == []
    assert list(tmp_path.iterdir()) == []


def test_a_metric_that_reads_settings_and_the_language_gets_them():
    settings = MetricsConfig(bleurt_model="DIR")
    seen = []

    def spying_score(predictions, references, settings, language):
        seen.append((settings, language))
        return 0.0

    spec = replace(METRICS.named("bleu"), score=spying_score, reads_settings=True)
    compute(spec, COLUMNS["texts"], settings, "ja")
    assert seen == [(settings, "ja")]
