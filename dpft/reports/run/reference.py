"""One published result beside which a run's own are shown: ``reference:`` of a recipe."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dpft.errors import InputError

OTHER_ACCOUNTANTS = frozenset({"gdp", "prv"})
"""Accountants whose epsilons papers print beside the one that they calibrate to."""
FRACTIONS = frozenset(
    {"accuracy", "f1", "meteor", "rouge_1", "rouge_2", "rouge_l", "matthews_correlation"}
    | {"pearson", "spearman", "distinct_1", "distinct_2", "token_accuracy"}
    | {"top_5_accuracy", "mean_accuracy"}
)
"""Metrics whose scale ends at 1, where papers often give percentages."""
SPLIT_OF_METRIC = "."
"""Parts a split's name from a metric's, where a row has the scores of several splits."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One row of a published table."""

    source: str
    """Paper and table."""
    what: str
    """Method, task and split of the row."""
    model: str | None = None
    """The model's name in conf/model; None: any."""
    eps: float | None = None
    """Epsilon as the paper gives it; None: trained without privacy."""
    epsilons: dict[str, float] = field(default_factory=dict)
    """Epsilon of the row's noise by other accountants, as published: gdp (CLT) and prv (composed
    tradeoff functions)."""
    metrics: dict[str, float]
    """Metric name to value, on the scales of metrics.json; of a row over several splits
    ``SPLIT.METRIC``, such as ``sst2_validation.accuracy``."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Dotted key of the configuration to its value in the row; empty: the table's own, not told."""

    def __post_init__(self) -> None:
        check_eps(self.eps, "reference")
        for name, value in self.epsilons.items():
            if name not in OTHER_ACCOUNTANTS or value <= 0:
                raise InputError(
                    "reference epsilons must be above 0 and of"
                    f" {', '.join(sorted(OTHER_ACCOUNTANTS))}, got {name}={value}."
                )
        for name, value in self.metrics.items():
            check_scale(name, value, "reference")


def check_eps(eps: float | None, key: str) -> None:
    """Refuses a published epsilon that is none.

    Raises:
        InputError: It is not above 0.
    """
    if eps is not None and eps <= 0:
        raise InputError(f"{key} eps must be above 0, or null for none, got {eps}.")


def check_scale(metric: str, value: float, key: str) -> None:
    """Refuses a percentage where metrics.json has a fraction.

    Raises:
        InputError: The metric's scale ends at 1, and the value is beyond it.
    """
    if metric.rpartition(SPLIT_OF_METRIC)[2] in FRACTIONS and abs(value) > 1:
        raise InputError(
            f"{key} metric {metric} must be at most 1, as in metrics.json, got {value};"
            " divide a percentage by 100."
        )


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """Returns the value of a dotted key in a saved configuration; None where there is none."""
    value: Any = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def agrees(settings: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Returns whether a run has all of a published result's settings; 3 and 3.0 are one number.

    Args:
        settings: Dotted key to value.
        config: Content of the run's config.yaml.
    """
    return all(value_at(config, key) == value for key, value in settings.items())
