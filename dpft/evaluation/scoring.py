"""Metrics computed by name over columns: each gets a value or a reason why it has none."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpft.evaluation.eval_config import MetricsConfig
from dpft.evaluation.metrics.base import (
    ATTRIBUTES,
    LABELS,
    LIKELIHOODS,
    NEXT_TOKENS,
    RANKINGS,
    TEXTS,
    MetricSpec,
    NotComputed,
    metric_specs,
)

Columns = Mapping[str, Sequence[Any]]
"""Column name to its values, all of one length."""

_WHY_MISSING = {
    TEXTS: "needs predictions, one text per input",
    LIKELIHOODS: "needs the model's likelihoods; a predictions file holds texts only",
    NEXT_TOKENS: "needs the model's likelihoods; a predictions file holds texts only",
    LABELS: "needs labels, a predicted and a right one per input",
    RANKINGS: "needs the model's probabilities; a predictions file holds one class per input",
    ATTRIBUTES: "needs attributes, predicted and right ones per input",
}


def compute_metrics(
    names: Sequence[str], columns: Mapping[str, Columns], settings: MetricsConfig | None = None
) -> tuple[dict[str, float], dict[str, str]]:
    """Returns the metrics' values, and the reason of each that has none.

    Args:
        names: Names of metrics of ``dpft.evaluation.metrics``.
        columns: Kind of columns (texts, likelihoods, labels) to the columns; a kind may be absent.
        settings: Models of the metrics' own; None: no models.

    Returns:
        Finite values by key, and reasons by key; every metric is in one of the two.

    Raises:
        InputError: A metric is unknown, or two share a key.
    """
    values: dict[str, float] = {}
    not_computed: dict[str, str] = {}
    for spec in metric_specs(names):
        try:
            values[spec.reported_as] = _value(spec, columns, settings or MetricsConfig())
        except NotComputed as reason:
            not_computed[spec.reported_as] = str(reason)
    return values, not_computed


def _value(spec: MetricSpec, columns: Mapping[str, Columns], settings: MetricsConfig) -> float:
    """Returns a metric's finite value."""
    from dpft.evaluation.local_metric import compute

    reason = spec.missing(settings) if spec.inputs in columns else _WHY_MISSING[spec.inputs]
    if reason is not None:
        raise NotComputed(reason)
    value = compute(spec, columns[spec.inputs], settings)
    if not math.isfinite(value):
        raise NotComputed(f"not a finite number ({value})")
    return value
