"""Published results in the ``reference`` sections of a recipe, shown next to a run's results.

A reference is one published result of a recipe, with its known settings. A reference map contains a
score for each combination of the values of two keys.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from dpft.config.section import Section
from dpft.errors import InputError
from dpft.strict_model import Positive

FRACTIONS = frozenset(
    {"accuracy", "f1", "meteor", "rouge_1", "rouge_2", "rouge_l", "matthews_correlation"}
    | {"pearson", "spearman", "distinct_1", "distinct_2", "token_accuracy"}
    | {"top_5_accuracy", "mean_accuracy"}
)
"""Metrics with a maximum of 1, for which papers often report percentages."""
SPLIT_OF_METRIC = "."
"""Separator between split and metric in a row with the scores of several splits."""


class Reference(Section):
    """Row of a published table."""

    source: str
    """Paper and table."""
    what: str
    """Method, task and split of the row."""
    model: str | None = None
    """Name of the model in conf/model (null: any model)."""
    eps: Positive | None = None
    """Epsilon as published (null: trained without privacy)."""
    epsilons: dict[Literal["gdp", "prv"], Positive] = Field(default_factory=dict)
    """Epsilon of the same noise by other accountants, as published: gdp (CLT) and prv (composed
    tradeoff functions)."""
    metrics: dict[str, float]
    """Metric name to value, on the scales of metrics.json. For a row over several splits, the names
    are ``SPLIT.METRIC``, such as ``sst2_validation.accuracy``."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Dotted configuration keys, with their values in the row (empty: the paper does not state
    any)."""

    def _check_fields(self) -> None:
        for name, value in self.metrics.items():
            check_scale(name, value, "reference")

    def fits(self, config: Mapping[str, Any]) -> bool:
        """Return whether the run has the model, epsilon and settings of the row."""
        private = value_at(config, "privacy.name") != "none"
        return (
            self.model in (None, value_at(config, "model.name"))
            and private == (self.eps is not None)
            and (not private or value_at(config, "privacy.eps") == self.eps)
            and agrees(self.settings, config)
        )


def check_scale(metric: str, value: float, key: str) -> None:
    """Reject a percentage for a metric that metrics.json stores as a fraction."""
    if metric.rpartition(SPLIT_OF_METRIC)[2] in FRACTIONS and abs(value) > 1:
        raise InputError(
            f"{key} metric {metric} must be at most 1, as in metrics.json, got {value}."
            " Divide a percentage by 100.",
            key=key,
            value=value,
        )


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key in a saved configuration, or None if the key is not set."""
    value: Any = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def agrees(settings: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Return whether a run has all settings of a published result; 3 and 3.0 are equal."""
    return all(value_at(config, key) == value for key, value in settings.items())


class MapAxis(Section):
    """Rows or columns of a published heat map."""

    key: str
    """Dotted configuration key, such as train.learning_rate."""
    values: tuple[int | float | str, ...]
    """Value of the key in each row, or in each column."""
    values_are: str | None = None
    """Source of the values, as text, if they are not from the paper (null: from the paper)."""

    def place(self, config: Mapping[str, Any]) -> int | None:
        """Return the index of the row or column that has a run's value of the key, or None."""
        value = value_at(config, self.key)
        return self.values.index(value) if value in self.values else None


class ReferenceMap(Section):
    """Published heat map of one metric over two keys."""

    source: str
    """Paper and figure."""
    what: str
    """Method, task and split of the map, as text."""
    task: str
    """Name of the task in conf/task."""
    split: str
    """Split that was scored."""
    model: str | None = None
    """Name of the model in conf/model (null: any model)."""
    eps: Positive | None = None
    """Epsilon as published (null: trained without privacy)."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Dotted configuration keys, with their values in all cells."""
    metric: str
    """Metric of the cells, a key of metrics.json."""
    rows: MapAxis
    """Key that has one value per row."""
    columns: MapAxis
    """Key that has one value per column."""
    cells: tuple[tuple[float | None, ...], ...]
    """Score for each row and column, on the scale of metrics.json (null: not known)."""

    def _check_fields(self) -> None:
        shape = [len(self.columns.values)] * len(self.rows.values)
        lengths = [len(row) for row in self.cells]
        if lengths != shape:
            raise InputError(
                f"reference_maps cells of {self.source} must have {len(shape)} rows with"
                f" {len(self.columns.values)} scores each, got rows of lengths {lengths}. Write"
                " null for an unknown score.",
                key="reference_maps",
                value=lengths,
            )
        for value in (value for row in self.cells for value in row if value is not None):
            check_scale(self.metric, value, "reference_maps")

    def row_of(self, config: Mapping[str, Any]) -> Reference | None:
        """Return the cell that has a run's settings, as a published row; None if there is none."""
        row, column = self.rows.place(config), self.columns.place(config)
        value = None if row is None or column is None else self.cells[row][column]
        if value is None or value_at(config, "task.name") != self.task:
            return None
        axes = (self.rows, self.columns)
        chosen = "; ".join(
            f"values of {one.key} {one.values_are}" for one in axes if one.values_are
        )
        cell = Reference(
            source=self.source,
            what=f"{self.what} ({chosen})" if chosen else self.what,
            model=self.model,
            eps=self.eps,
            metrics={self.metric: value},
            settings={axis.key: value_at(config, axis.key) for axis in axes},
        )
        return cell if cell.fits(config) and agrees(self.settings, config) else None
