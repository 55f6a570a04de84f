"""Metrics by name, over whatever there is to read: each gets a value or a reason why not."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpft.evaluation.metrics.base import LABELS, LIKELIHOODS, TEXTS, metric_spec

Columns = Mapping[str, Sequence[Any]]
"""Column name to its values, all of one length."""

_WHY_MISSING = {
    TEXTS: "needs predictions, one text per input",
    LIKELIHOODS: "needs the model's likelihoods; a predictions file holds texts only",
    LABELS: "needs labels, a predicted and a right one per input",
}


def compute_metrics(
    names: Sequence[str], columns: Mapping[str, Columns]
) -> tuple[dict[str, float], dict[str, str]]:
    """Returns the metrics' values, and the reason of each that has none.

    Args:
        names: Metrics, modules of ``dpft.evaluation.metrics``.
        columns: Kind of columns (texts, likelihoods, labels) to the columns; a kind may be absent.

    Returns:
        Finite values by name, and reasons by name; every name is in one of the two.

    Raises:
        InputError: A metric is unknown.
    """
    from dpft.evaluation.metrics.local import compute

    values: dict[str, float] = {}
    not_computed: dict[str, str] = {}
    for spec in [metric_spec(name) for name in names]:
        if spec.inputs not in columns:
            not_computed[spec.name] = _WHY_MISSING[spec.inputs]
            continue
        value = compute(spec, columns[spec.inputs])
        if math.isfinite(value):
            values[spec.name] = value
        else:
            not_computed[spec.name] = f"not a finite number ({value})"
    return values, not_computed
