"""What every metric is: a name, a plain function and the columns it reads.

A metric is a module of this package that binds ``METRIC``. The function holds the arithmetic and
needs no library of Hugging Face; ``dpft.evaluation.metrics.local`` wraps it.
"""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpft.errors import InputError
from dpft.evaluation.metrics_settings import MetricsConfig

TEXTS = "texts"
"""Predictions and their references: columns ``predictions`` and ``references``."""
LIKELIHOODS = "likelihoods"
"""A model's likelihood of the references: columns ``nll_sums`` (nats) and ``token_counts``."""
LABELS = "labels"
"""Classes or, for regression, scores: columns ``predicted`` and ``gold``, numbers."""

HIGHER, LOWER = "higher", "lower"
"""Which of two values of a metric is better."""

_INFRASTRUCTURE = {"base", "local", "needs", "ngrams", "ptb", "rouge"}


class NotComputed(Exception):
    """A metric has no value on these columns; the message is the reason and quotes no text."""


def nothing_missing(settings: MetricsConfig) -> str | None:
    """Returns None: a metric that needs no more than dpft itself."""
    return None


@dataclass(frozen=True, kw_only=True)
class MetricSpec:
    """One metric: what it is called, what it reads and how it is computed."""

    name: str
    """Name of the module."""
    inputs: str
    """The kind of columns it reads, which are the parameters of ``score``: ``TEXTS``, say."""
    score: Callable[..., float]
    """The arithmetic; keyword parameters named as the columns. May raise ``NotComputed``."""
    description: str
    """What the number means, with its scale."""
    citation: str
    """Where the metric is defined."""
    key: str = ""
    """Key in metrics.json, which metrics of one kind may share; empty: ``name``."""
    missing: Callable[[MetricsConfig], str | None] = nothing_missing
    """Why the metric cannot be computed here and how to mend that; None where it can."""
    reads_settings: bool = False
    """Whether ``score`` also takes ``settings``, a ``MetricsConfig``."""
    better: str | None = HIGHER
    """``HIGHER`` or ``LOWER``; None: neither is better, so no run can be chosen by it."""

    @property
    def reported_as(self) -> str:
        """Its key in metrics.json."""
        return self.key or self.name


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


def metric_specs(names: Sequence[str]) -> list[MetricSpec]:
    """Returns the metrics of a task.

    Raises:
        InputError: There is no such metric, or two would share a key of metrics.json.
    """
    specs = [metric_spec(name) for name in names]
    by_key: dict[str, str] = {}
    for spec in specs:
        other = by_key.setdefault(spec.reported_as, spec.name)
        if other != spec.name or names.count(spec.name) > 1:
            raise InputError(
                f"task.metrics must hold one metric for each key of metrics.json, got {other} and"
                f" {spec.name} for {spec.reported_as}; leave one out."
            )
    return specs
