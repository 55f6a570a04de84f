import inspect
import sys
from pathlib import Path

import pytest
import yaml

from dpft.evaluation.metrics.base import (
    METRICS,
    metric_specs,
    missing_folder,
    missing_java,
    missing_modules,
)
from dpft.tasks.base import TASKS
from tests.rejections import rejects

CONF = Path(__file__).parents[3] / "conf" / "task"
COLUMNS = {
    "texts": ["predictions", "references"],
    "likelihoods": ["nll_sums", "token_counts"],
    "next_tokens": ["right_counts", "token_counts"],
    "labels": ["predicted", "gold"],
    "rankings": ["ranked", "gold"],
    "attributes": ["predicted", "gold"],
    "pairs": ["chosen", "rejected", "tokens"],
}


@pytest.mark.parametrize("name", METRICS.entries())
def test_a_metric_is_a_function_of_its_own_name(name):
    spec = METRICS.named(name)
    assert spec.name == name
    assert spec.score.__name__ == name
    assert list(inspect.signature(spec.score).parameters) == [
        *COLUMNS[spec.inputs],
        *(["settings"] if spec.reads_settings else []),
        *(["language"] if spec.reads_language else []),
    ]
    assert spec.description and spec.citation


@pytest.mark.parametrize("name", TASKS.entries())
def test_the_metrics_of_every_task_exist(name):
    metrics = yaml.safe_load((CONF / f"{name}.yaml").read_text())["metrics"]
    assert (metrics or name == "custom") and set(metrics) <= set(METRICS.entries())


@pytest.mark.parametrize("name", ["blue", "base", "needs", "rouge", "tokens"])
def test_an_unknown_metric_is_refused_with_the_known_ones(name):
    with rejects("task.metrics", name):
        METRICS.named(name)


@pytest.mark.parametrize("names", [["rouge_l", "bleu", "rouge_score_l"], ["bleu", "bleu"]])
def test_two_metrics_of_one_key_are_refused(names):
    with rejects("task.metrics", names[-1]):
        metric_specs(names)


def test_metrics_that_share_a_key_are_taken_one_at_a_time():
    assert [spec.reported_as for spec in metric_specs(["rouge_score_l", "token_f1"])] == [
        "rouge_l",
        "f1",
    ]


def test_what_is_there_is_not_missing(tmp_path, monkeypatch):
    (tmp_path / "java").write_text("#!/bin/sh\n")
    (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing_java() is None
    assert missing_modules("json", "math") is None
    assert missing_folder("metrics.x", str(tmp_path), "y") is None


def test_a_reason_says_how_to_get_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "json", None)
    assert missing_java() == "needs Java; install a Java runtime (8 or newer)"
    assert missing_modules("json") == "needs the extra: pip install 'dpft[metrics]'"
    assert "set metrics.x=DIR (for example, a download of y)" in missing_folder(
        "metrics.x", None, "y"
    )
    assert "metrics.x=none is not a folder" in missing_folder("metrics.x", "none", "y")
