"""Metrics as local ``evaluate.Metric`` classes, which are never downloaded.

This module is separate because importing ``evaluate`` takes five seconds. Import it only to compute
scores.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import evaluate

from dpft.evaluation.eval_config import MetricsConfig
from dpft.evaluation.metrics.base import (
    ATTRIBUTES,
    LABELS,
    LIKELIHOODS,
    NEXT_TOKENS,
    PAIRS,
    RANKINGS,
    TEXTS,
    MetricSpec,
)

FEATURES = {
    TEXTS: datasets.Features(
        {
            "predictions": datasets.Value("string"),
            "references": datasets.List(datasets.Value("string")),
        }
    ),
    LIKELIHOODS: datasets.Features(
        {"nll_sums": datasets.Value("float64"), "token_counts": datasets.Value("int64")}
    ),
    NEXT_TOKENS: datasets.Features(
        {"right_counts": datasets.Value("int64"), "token_counts": datasets.Value("int64")}
    ),
    PAIRS: datasets.Features(
        {
            "chosen": datasets.Value("float64"),
            "rejected": datasets.Value("float64"),
            "tokens": datasets.Value("int64"),
        }
    ),
    LABELS: datasets.Features(
        {"predicted": datasets.Value("float64"), "gold": datasets.Value("float64")}
    ),
    RANKINGS: datasets.Features(
        {"ranked": datasets.List(datasets.Value("float64")), "gold": datasets.Value("float64")}
    ),
    ATTRIBUTES: datasets.Features(
        {
            "predicted": datasets.List(datasets.Value("float64")),
            "gold": datasets.List(datasets.Value("float64")),
        }
    ),
}
"""Column types of each kind of columns."""

NO_SETTINGS = MetricsConfig()
"""Settings without models for metrics."""


class LocalMetric(evaluate.Metric):  # type: ignore[misc]
    """A metric of ``dpft.evaluation.metrics`` with the interface of Hugging Face's ``evaluate``."""

    def __init__(self, spec: MetricSpec, **settings: Any) -> None:
        """Wrap the metric; ``settings`` are passed to ``evaluate.Metric``."""
        self.spec = spec
        super().__init__(**settings)

    def _build_data_dir(self) -> str:
        """Return the folder for columns on disk; create it only if columns are stored on disk."""
        folder: str = self._data_dir_root if self.keep_in_memory else super()._build_data_dir()
        return folder

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=self.spec.description,
            citation=self.spec.citation,
            inputs_description="",
            features=FEATURES[self.spec.inputs],
        )

    def _compute(self, **columns: Any) -> dict[str, float]:
        return {self.spec.name: self.spec.score(**columns)}


def compute(
    spec: MetricSpec,
    columns: Mapping[str, Sequence[Any]],
    settings: MetricsConfig = NO_SETTINGS,
    language: str | None = None,
) -> float:
    """Return the metric's value on columns with texts in ``language``.

    Guarantees:
        No text is written to disk. By default, ``evaluate`` writes columns to its cache, and
        references may be private (docs/dev/design.md, rule 11).

    Raises:
        NotComputed: The metric has no value on these columns.
    """
    more: dict[str, Any] = {"settings": settings} if spec.reads_settings else {}
    if spec.reads_language:
        more["language"] = language
    metric = LocalMetric(spec, keep_in_memory=True)
    return float(metric.compute(**columns, **more)[spec.name])
