"""What every metric is: a name, a plain function and the columns it reads.

A metric is a module of this package that binds ``METRIC``. The function holds the arithmetic and
needs no library of Hugging Face; ``dpft.evaluation.metrics.local`` wraps it.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from dpft.errors import InputError

TEXTS = "texts"
"""Predictions and their references: columns ``predictions`` and ``references``."""
LIKELIHOODS = "likelihoods"
"""A model's likelihood of the references: columns ``nll_sums`` (nats) and ``token_counts``."""
LABELS = "labels"
"""Classes or, for regression, scores: columns ``predicted`` and ``gold``, numbers."""

_INFRASTRUCTURE = {"base", "local", "ptb"}


@dataclass(frozen=True, kw_only=True)
class MetricSpec:
    """One metric: what it is called, what it reads and how it is computed."""

    name: str
    """Key in metrics.json, and name of the module."""
    inputs: str
    """The kind of columns it reads, which are the parameters of ``score``: ``TEXTS``, say."""
    score: Callable[..., float]
    """The arithmetic; keyword parameters named as the columns."""
    description: str
    """What the number means, with its scale."""
    citation: str
    """Where the metric is defined."""


def metric_names() -> list[str]:
    """Returns the names of the metrics in this package, one module each."""
    package = importlib.import_module("dpft.evaluation.metrics")
    return sorted({m.name for m in pkgutil.iter_modules(package.__path__)} - _INFRASTRUCTURE)


def metric_spec(name: str) -> MetricSpec:
    """Returns the metric that ``dpft/evaluation/metrics/<name>.py`` calls ``METRIC``.

    Raises:
        InputError: There is no such metric.
    """
    if name not in metric_names():
        raise InputError(
            f"each of task.metrics must be one of {', '.join(metric_names())}, got {name!r}."
        )
    spec: MetricSpec = importlib.import_module(f"dpft.evaluation.metrics.{name}").METRIC
    return spec
