"""Published results on a run's page, each with the settings that it is known to be of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpft.records.configuration import RunConfiguration
from dpft.records.scores import ScoreEntry
from dpft.reports.pages import printed
from dpft.reports.run.reference_map import SPLIT_OF_METRIC, Reference, agrees, saved_maps
from dpft.reports.run.run_record import RunRecord

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

    Args:
        record: Of the run.
        evaluations: Entries of metrics.json.
        epsilon: The run's own, as printed.
    """
    maps = saved_maps(record.config.reference_maps)
    rows = [row for row in (one.row_of(record.values) for one in maps) if row is not None]
    rows += _rows_of_model(record.config)
    if not rows:
        return None
    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics))
    own = _own_rows(metrics, evaluations)
    published = [
        (_name(row) + _settings(row, record.values, swept=bool(maps)), _epsilon(row), row.metrics)
        for row in rows
    ]
    return PublishedTable(
        metrics=metrics,
        rows=[
            (name, eps, [scores.get(metric) for metric in metrics])
            for name, eps, scores in [*[(name, epsilon, one) for name, one in own], *published]
        ],
    )


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


def _rows_of_model(config: RunConfiguration) -> list[Reference]:
    """Returns the rows for the run's model, or all where none is."""
    rows = [Reference(**row) for row in config.reference or ()]
    return [row for row in rows if row.model in (None, config.model.name)] or rows


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
    return f"; at {listed}, which this run's settings are not"


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
