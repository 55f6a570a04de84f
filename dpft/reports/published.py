"""Show published results next to a run's own, in its report and in comparisons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpft.config.references import SPLIT_OF_METRIC, Reference, agrees
from dpft.evaluation.scores import ScoreEntry
from dpft.reports.rendering import printed
from dpft.reports.run_record import RunRecord

PUBLISHED, SOURCE = "published.", "published.source"
"""Prefix of the columns with published scores, and the column that names their tables."""


PUBLISHED_NOTE = (
    "A published row is comparable with this run as far as task, model, method, ε and settings"
    " agree. A row without settings has those of its table, which may differ from the settings of"
    " this run. The ε of a row follows the accounting of its paper."
)


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A table with a run's scores above the published scores."""

    metrics: list[str]
    rows: list[tuple[str, str, list[float | None]]]
    """Name of a row, its ε, and its value of each metric."""


def published_table(
    record: RunRecord, evaluations: Sequence[ScoreEntry], epsilon: str
) -> PublishedTable | None:
    """Return a table of the run's scores and the published scores; None without published scores.

    If a heat map is published, the table contains only the cell with the run's settings. If rows
    are published, the table contains the rows for the run's model, or all rows if there are none
    for that model.
    """
    is_swept, cells, recipes = _published_rows(record)
    of_model = [row for row in recipes if row.model in (None, record.config.model.name)]
    rows = [*cells, *(of_model or recipes)]
    if not rows:
        return None
    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics))
    run_rows = _own_rows(metrics, evaluations)
    published = [
        (_name(row) + _settings(row, record.values, swept=is_swept), _epsilon(row), row.metrics)
        for row in rows
    ]
    return PublishedTable(
        metrics=metrics,
        rows=[
            (name, eps, [scores.get(metric) for metric in metrics])
            for name, eps, scores in [*[(name, epsilon, one) for name, one in run_rows], *published]
        ],
    )


def published_scores(record: RunRecord) -> dict[str, float | str]:
    """Return the published scores of a run's model, ε and settings, and their sources.

    If several rows contain the same metric, the row with the most settings is used.
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
    """Return whether the recipe has a heat map, this run's cells in it, and the recipe's rows."""
    maps = record.config.reference_maps
    cells = [row for row in (one.row_of(record.values) for one in maps) if row is not None]
    return bool(maps), cells, list(record.config.reference)


def _own_rows(
    metrics: Sequence[str], evaluations: Sequence[ScoreEntry]
) -> list[tuple[str, Mapping[str, float]]]:
    """Return name and scores of the run's own rows, one row for each split.

    If published metrics name their split, as ``sst2_validation.accuracy`` does, one row has the
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
    """Return the settings of a published row as text.

    Args:
        row: A published row.
        config: Content of the run's config.yaml.
        swept: Whether the recipe has a heat map, so that a run may differ from the settings of a
            table.
    """
    if not row.settings:
        return "; with the settings of its table" if swept else ""
    words = {
        key: "null" if value is None else printed(value) for key, value in row.settings.items()
    }
    listed = ", ".join(f"{key} {word}" for key, word in words.items())
    if agrees(row.settings, config):
        return f"; with the same {listed} as this run"
    others = [key for key, value in row.settings.items() if not agrees({key: value}, config)]
    return f"; with {listed} (this run has a different {' and '.join(others)})"


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
