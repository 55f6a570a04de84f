"""Published results beside which a run's own are shown: ``reference:`` of a recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpft.errors import InputError

PUBLISHED_NOTE = (
    "A published row compares to this run as far as task, model, method and ε agree; its ε is by"
    " the paper's own accounting."
)
OTHER_ACCOUNTANTS = frozenset({"gdp", "prv"})
"""Accountants whose epsilons papers print beside the one that they calibrate to."""
FRACTIONS = frozenset(
    {"accuracy", "f1", "meteor", "rouge_1", "rouge_2", "rouge_l", "matthews_correlation"}
    | {"pearson", "spearman", "distinct_1", "distinct_2"}
)
"""Metrics whose scale ends at 1, where papers often give percentages."""


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
    """Metric name to value, on the scales of metrics.json."""

    def __post_init__(self) -> None:
        if self.eps is not None and self.eps <= 0:
            raise InputError(f"reference eps must be above 0, or null for none, got {self.eps}.")
        for name, value in self.epsilons.items():
            if name not in OTHER_ACCOUNTANTS or value <= 0:
                raise InputError(
                    "reference epsilons must be above 0 and of"
                    f" {', '.join(sorted(OTHER_ACCOUNTANTS))}, got {name}={value}."
                )
        for name, value in self.metrics.items():
            if name in FRACTIONS and abs(value) > 1:
                raise InputError(
                    f"reference metric {name} must be at most 1, as in metrics.json, got {value};"
                    " divide a percentage by 100."
                )


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A run's scores above those published."""

    metrics: list[str]
    rows: list[tuple[str, str, list[float | None]]]
    """What a row is, its epsilon, and its value of each metric."""


def published_table(
    config: Mapping[str, Any], evaluations: Sequence[Mapping[str, Any]], epsilon: str
) -> PublishedTable | None:
    """Returns the published rows for the run's model, or all where none is; None without any.

    Args:
        config: Content of config.yaml.
        evaluations: Entries of metrics.json.
        epsilon: The run's own, as printed.
    """
    rows = config.get("reference") or []
    rows = [row for row in rows if row["model"] in (None, config["model"]["name"])] or rows
    if not rows:
        return None
    metrics = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    own = [
        (f"this run, split {entry['split']}{_mark(entry)}", epsilon, entry["metrics"])
        for entry in evaluations
        if entry["stage"] == "after" and entry["metrics"]
    ]
    published = [(_name(row), _epsilon(row), row["metrics"]) for row in rows]
    return PublishedTable(
        metrics=metrics,
        rows=[
            (name, eps, [scores.get(metric) for metric in metrics])
            for name, eps, scores in [*own, *published]
        ],
    )


def _mark(entry: Mapping[str, Any]) -> str:
    return "" if entry["split_is_public"] else " (private)"


def _name(row: Mapping[str, Any]) -> str:
    model = "" if row["model"] is None else f", {row['model']}"
    return f"{row['source']}: {row['what']}{model}"


def _epsilon(row: Mapping[str, Any]) -> str:
    return "not private" if row["eps"] is None else f"{row['eps']:g}"
