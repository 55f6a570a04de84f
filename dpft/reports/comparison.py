"""Reports of many runs: tables in Markdown, in HTML with plots, and in CSV.

Scores of private splits are marked in each of them; none of them is covered by epsilon.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.errors import InputError
from dpft.files import SCHEMA_VERSION, write_text
from dpft.reports.composition import composed_costs
from dpft.reports.pages import render_html, render_markdown
from dpft.reports.records import RunRecord
from dpft.reports.scores import PRIVATE_SPLIT
from dpft.reports.significance import BOLD_NOTE
from dpft.reports.sweep_plots import split_plots
from dpft.reports.sweeps import EPS, Setting, group_runs, swept_keys
from dpft.reports.tables import Pivot, Split, parameters, pivots, printed_epsilon, split_tables

FILES = ("report.md", "table.csv", "report.html")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Many runs, put in order."""

    settings: list[Setting]
    keys: list[str]
    """Keys in which the settings differ."""
    axes: tuple[str, str] | None
    """Keys of the rows and of the columns of two-way tables."""
    fixed: list[str]
    """Keys that are held fixed in each of them."""
    splits: list[Split]
    metrics: tuple[str, ...] | None
    """Those shown over two keys and drawn; None: each split's first."""
    costs: list[str]
    left_out: list[str]
    """Folders of runs without a report."""

    def shown(self, split: Split) -> list[str]:
        """Returns the metrics that are shown over two keys and drawn."""
        return [name for name in self.metrics or split.metrics[:1] if name in split.metrics]

    def pivots(self, split: Split) -> list[Pivot]:
        """Returns the two-way tables of a split."""
        if self.axes is None:
            return []
        axes, metrics = self.axes, self.shown(split)
        tables = (pivots(split, self.settings, name, axes, self.fixed) for name in metrics)
        return [table for of_metric in tables for table in of_metric]


def compare(
    records: Sequence[RunRecord],
    *,
    unfinished: Sequence[Path] = (),
    over: tuple[str, ...] = (),
    metrics: tuple[str, ...] | None = None,
) -> Comparison:
    """Returns the runs put in order.

    Args:
        records: Of finished runs, at least one.
        unfinished: Folders of others.
        over: Keys of the rows and of the columns of two-way tables; empty: chosen.
        metrics: Those of the two-way tables and plots; None: each split's first.

    Raises:
        InputError: A key or a metric is in no run.
    """
    settings = group_runs(records)
    keys = swept_keys(settings)
    for key in over:
        if not any(key in setting.values for setting in settings):
            raise InputError(
                f"over must name keys of the runs' configuration, got {key!r}; those in which the"
                f" runs differ are {', '.join(keys) or 'none'}."
            )
    splits = split_tables(settings)
    known = {name for split in splits for name in split.metrics}
    for name in metrics or ():
        if name not in known:
            raise InputError(
                f"metric must be one that the runs were scored by, got {name!r}; there are"
                f" {', '.join(sorted(known)) or 'none'}."
            )
    return Comparison(
        settings=settings,
        keys=[*keys, *(key for key in over if key not in keys)],
        axes=(over[0], over[1]) if over else default_axes(keys),
        fixed=[key for key in keys if key not in over] if over else [],
        splits=splits,
        metrics=metrics,
        costs=composed_costs(records, len(unfinished)),
        left_out=[str(folder) for folder in unfinished],
    )


def default_axes(keys: Sequence[str]) -> tuple[str, str] | None:
    """Returns the keys of rows and columns: method × ε if both differ, else two that do."""
    names = [key for key in ("method.name", "model.name", "task.name") if key in keys]
    if EPS in keys and names:
        return names[0], EPS
    return (keys[0], keys[1]) if len(keys) == 2 else None


def markdown(comparison: Comparison) -> str:
    """Returns the tables as Markdown."""
    return render_markdown("comparison.md.j2", **_parts(comparison))


def page(comparison: Comparison) -> str:
    """Returns the tables and plots as HTML."""
    plots = [
        split_plots(comparison, split, f"split{number}")
        for number, split in enumerate(comparison.splits)
    ]
    return render_html("comparison.html.j2", plots=plots, **_parts(comparison))


def record(comparison: Comparison) -> dict[str, Any]:
    """Returns what ``dpft report runs=… output=json`` prints."""
    return {
        "schema_version": SCHEMA_VERSION,
        "keys": comparison.keys,
        "runs": csv_rows(comparison),
        "costs": comparison.costs,
        "left_out": comparison.left_out,
    }


def csv_table(comparison: Comparison) -> str:
    """Returns a line for each run and split, every score unrounded."""
    rows = csv_rows(comparison)
    names = list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def csv_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Returns what the table of single runs holds."""
    return [
        {
            "run": str(run.folder),
            **{key: setting.label(key) for key in comparison.keys},
            "seed": run.config.get("train", {}).get("seed", ""),
            "epsilon": run.privacy.get("epsilon", ""),
            "delta": run.privacy.get("delta", ""),
            "private": run.privacy.get("private", False),
            "trainable_parameters": run.privacy["trainable_parameters"],
            "total_parameters": run.privacy["total_parameters"],
            "task": entry["task"],
            "split": entry["split"],
            "split_is_public": entry["split_is_public"],
            "note": "" if entry["split_is_public"] else PRIVATE_SPLIT,
            **entry["metrics"],
        }
        for setting in comparison.settings
        for run in setting.runs
        for entry in run.after()
    ]


def write_comparison(comparison: Comparison, folder: Path) -> None:
    """Writes report.md, table.csv and report.html into a folder, made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = (markdown(comparison), csv_table(comparison), page(comparison))
    for name, text in zip(FILES, texts, strict=True):
        write_text(folder / name, text)


def _parts(comparison: Comparison) -> dict[str, Any]:
    settings = comparison.settings
    runs = sum(len(setting.runs) for setting in settings)
    several = any(len(setting.runs) > 1 for setting in settings)
    return {
        "title": f"{runs} runs, {len(settings)} settings",
        "keys": comparison.keys,
        "columns": [key for key in comparison.keys if key != EPS],
        "settings": settings,
        "epsilons": [printed_epsilon(setting.runs) for setting in settings],
        "parameters": [parameters(setting.runs[0]) for setting in settings],
        "splits": comparison.splits,
        "pivots": [comparison.pivots(split) for split in comparison.splits],
        "costs": comparison.costs,
        "left_out": comparison.left_out,
        "bold_note": BOLD_NOTE if several else "",
        "private_split": PRIVATE_SPLIT,
    }
