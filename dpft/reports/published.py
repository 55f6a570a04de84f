"""Published results beside a run's own: ``reference:`` and ``reference_maps:`` of a recipe.

A reference is one result of a recipe, with the settings that it is known to be of; a map is a score
over the values of two keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpft.errors import InputError
from dpft.records.scores import ScoreEntry
from dpft.reports.pages import printed
from dpft.reports.run_record import RunRecord

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
PUBLISHED, SOURCE = "published.", "published.source"
"""Prefix of the columns with published scores, and the column that names their tables."""


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

    def fits(self, config: Mapping[str, Any]) -> bool:
        """Return whether model, epsilon and settings of a run are those of the row."""
        private = value_at(config, "privacy.name") != "none"
        return (
            self.model in (None, value_at(config, "model.name"))
            and private == (self.eps is not None)
            and (not private or value_at(config, "privacy.eps") == self.eps)
            and agrees(self.settings, config)
        )


def check_eps(eps: float | None, key: str) -> None:
    """Refuses a published epsilon that is none."""
    if eps is not None and eps <= 0:
        raise InputError(f"{key} eps must be above 0, or null for none, got {eps}.")


def check_scale(metric: str, value: float, key: str) -> None:
    """Refuses a percentage where metrics.json has a fraction."""
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
    """Returns whether a run has all of a published result's settings; 3 and 3.0 are one number."""
    return all(value_at(config, key) == value for key, value in settings.items())


@dataclass(frozen=True, kw_only=True)
class MapAxis:
    """The rows or the columns of a published heat map."""

    key: str
    """Dotted key of the configuration, such as train.learning_rate."""
    values: tuple[int | float | str, ...]
    """Its value in each row, or in each column."""
    values_are: str | None = None
    """Whose the values are, in words, where they are not the paper's; None: the paper's."""

    def place(self, config: Mapping[str, Any]) -> int | None:
        """Returns in which row, or column, a run's value of the key is; None: in none."""
        value = value_at(config, self.key)
        return self.values.index(value) if value in self.values else None


@dataclass(frozen=True, kw_only=True)
class ReferenceMap:
    """A published heat map of one metric over two keys."""

    source: str
    """Paper and figure."""
    what: str
    """Method, task and split of the map, in words."""
    task: str
    """The task's name in conf/task."""
    split: str
    """The split of which the scores are."""
    model: str | None = None
    """The model's name in conf/model; None: any."""
    eps: float | None = None
    """Epsilon as the paper gives it; None: trained without privacy."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Dotted key of the configuration to the value that it has in every cell."""
    metric: str
    """What the cells are, a key of metrics.json."""
    rows: MapAxis
    """The key that has one value in each row."""
    columns: MapAxis
    """The key that has one value in each column."""
    cells: tuple[tuple[float | None, ...], ...]
    """A score for each row and column, on the scale of metrics.json; null where none is known."""

    def __post_init__(self) -> None:
        check_eps(self.eps, "reference_maps")
        shape = [len(self.columns.values)] * len(self.rows.values)
        found = [len(row) for row in self.cells]
        if found != shape:
            raise InputError(
                f"reference_maps cells must have a list for each of {len(shape)} rows and a score"
                f" for each of {len(self.columns.values)} columns, got lists of {found} for"
                f" {self.source}; write null for a score that is not known."
            )
        for value in (value for row in self.cells for value in row if value is not None):
            check_scale(self.metric, value, "reference_maps")

    def row_of(self, config: Mapping[str, Any]) -> Reference | None:
        """Return the cell that has a run's settings as a published row, or None."""
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


def saved_maps(saved: Sequence[Mapping[str, Any]] | None) -> list[ReferenceMap]:
    """Returns the published maps in ``reference_maps`` of a run's config.yaml, if it has any."""
    try:
        return [_from_saved(each) for each in saved or ()]
    except InputError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            "reference_maps of a run's config.yaml must be as a recipe writes them, got what lacks"
            f" or adds a part ({error}); put the file back."
        ) from error


def _from_saved(saved: Mapping[str, Any]) -> ReferenceMap:
    axes = {
        name: MapAxis(**{**saved[name], "values": tuple(saved[name]["values"])})
        for name in ("rows", "columns")
    }
    cells = tuple(
        tuple(None if cell is None else float(cell) for cell in row) for row in saved["cells"]
    )
    return ReferenceMap(**{**saved, **axes, "cells": cells})


PUBLISHED_NOTE = (
    "A published row compares to this run as far as task, model, method, ε and settings agree."
    " Where a row names no settings, they are its table's own and may not be this run's; its ε is"
    " by the paper's own accounting."
)


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A run's scores above those published."""

    metrics: list[str]
    rows: list[tuple[str, str, list[float | None]]]
    """What a row is, its epsilon, and its value of each metric."""


def published_table(
    record: RunRecord, evaluations: Sequence[ScoreEntry], epsilon: str
) -> PublishedTable | None:
    """Returns the run's scores above the published ones; None where nothing is published.

    Of a published map it has the cell of the run's own settings alone. Of rows it has those for the
    run's model, or all where none is.
    """
    is_swept, cells, recipes = _published_rows(record)
    of_model = [row for row in recipes if row.model in (None, record.config.model.name)]
    rows = [*cells, *(of_model or recipes)]
    if not rows:
        return None
    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics))
    own = _own_rows(metrics, evaluations)
    published = [
        (_name(row) + _settings(row, record.values, swept=is_swept), _epsilon(row), row.metrics)
        for row in rows
    ]
    return PublishedTable(
        metrics=metrics,
        rows=[
            (name, eps, [scores.get(metric) for metric in metrics])
            for name, eps, scores in [*[(name, epsilon, one) for name, one in own], *published]
        ],
    )


def published_scores(record: RunRecord) -> dict[str, float | str]:
    """Return the published scores of a run's model, epsilon and settings, and their sources.

    If several rows have a metric, the one that names the most settings counts.
    """
    _, cells, recipes = _published_rows(record)
    rows = [row for row in (*cells, *recipes) if row.fits(record.values)]
    rows = sorted(rows, key=lambda row: len(row.settings))
    scores: dict[str, float | str] = {}
    for row in rows:
        scores |= {f"{PUBLISHED}{metric}": value for metric, value in row.metrics.items()}
    if scores:
        scores[SOURCE] = "; ".join(dict.fromkeys(row.source for row in reversed(rows)))
    return scores


def _published_rows(record: RunRecord) -> tuple[bool, list[Reference], list[Reference]]:
    """Return whether the recipe has a map, the map's cells for this run, and the recipe's rows."""
    maps = saved_maps(record.config.reference_maps)
    cells = [row for row in (one.row_of(record.values) for one in maps) if row is not None]
    return bool(maps), cells, [Reference(**row) for row in record.config.reference or ()]


def _own_rows(
    metrics: Sequence[str], evaluations: Sequence[ScoreEntry]
) -> list[tuple[str, Mapping[str, float]]]:
    """Returns what the run's own rows are and their scores: one row for each split.

    Where published metrics name their split, as ``sst2_validation.accuracy`` does, one row has the
    scores of all splits.
    """
    after = [one for one in evaluations if one.stage == "after" and one.metrics]
    of_splits = {
        f"{one.split}.{name}": value for one in after for name, value in one.metrics.items()
    }
    if any(SPLIT_OF_METRIC in name for name in metrics):
        mark = next((_mark(one) for one in after if not one.split_is_public), "")
        return [(f"this run{mark}", of_splits)] if after else []
    return [(f"this run, split {one.split}{_mark(one)}", one.metrics) for one in after]


def _settings(row: Reference, config: Mapping[str, Any], *, swept: bool) -> str:
    """Returns of what settings a row is, in words.

    Args:
        row: A published row.
        config: Content of the run's config.yaml.
        swept: Whether the recipe is that of a map, whose runs leave the settings of the tables that
            it builds on.
    """
    if not row.settings:
        return "; at its table's own settings" if swept else ""
    words = {
        key: "null" if value is None else printed(value) for key, value in row.settings.items()
    }
    listed = ", ".join(f"{key} {word}" for key, word in words.items())
    if agrees(row.settings, config):
        return f"; at this run's {listed}"
    others = [key for key, value in row.settings.items() if not agrees({key: value}, config)]
    return f"; at {listed}, of which this run has another {' and '.join(others)}"


def _mark(entry: ScoreEntry) -> str:
    return "" if entry.split_is_public else " (private, not covered by ε, two digits)"


def _name(row: Reference) -> str:
    model = "" if row.model is None else f", {row.model}"
    return f"{row.source}: {row.what}{model}"


def _epsilon(row: Reference) -> str:
    if row.eps is None:
        return "not private"
    others = ", ".join(f"{name} {value:g}" for name, value in row.epsilons.items())
    return f"{row.eps:g} ({others})" if others else f"{row.eps:g}"
