"""Reports of many runs: tables in Markdown, in HTML with plots, and in CSV.

Scores of private splits are left out of what others may read, and marked in each of them where
they stand; none of them is covered by epsilon.
"""

import csv
import io
from pathlib import Path
from typing import Any

from dpft.files import SCHEMA_VERSION, write_text
from dpft.records.privacy_file import RunPrivacy
from dpft.records.promises import OpenRun
from dpft.records.scores import PRIVATE_SPLIT
from dpft.reports.comparison.compare import Comparison
from dpft.reports.comparison.published import published_pivots
from dpft.reports.comparison.sweep_plots import split_plots
from dpft.reports.comparison.sweeps import EPS
from dpft.reports.comparison.tables import BOLD_NOTE, bases, parameters, printed_epsilon
from dpft.reports.pages import render_html, render_markdown
from dpft.run_folder import PAGE, PRIVATE_METRICS, REPORT

FILES = (REPORT, "table.csv", PAGE)


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


def _spent(privacy: RunPrivacy) -> dict[str, Any]:
    """Returns what a run cost, by itself and with its tokenizer; empty words without privacy."""
    if isinstance(privacy, OpenRun):
        return {"epsilon": "", "delta": "", "accountant": ""}
    names = ("epsilon", "delta", "accountant", "epsilon_with_tokenizer", "delta_with_tokenizer")
    stated = {name: getattr(privacy, name) for name in names}
    return {name: value for name, value in stated.items() if value is not None}


def csv_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Returns what the table of single runs holds."""
    return [
        {
            "run": str(run.folder),
            **{key: setting.label(key) for key in comparison.keys},
            "seed": "" if run.config.train.seed is None else run.config.train.seed,
            **_spent(run.privacy),
            "private": run.privacy.private,
            "trainable_parameters": run.privacy.trainable_parameters,
            "total_parameters": run.privacy.total_parameters,
            "task": entry.task,
            "split": entry.split,
            "split_is_public": entry.split_is_public,
            "note": entry.note or "",
            **entry.metrics,
        }
        for setting in comparison.settings
        for run in setting.runs
        for entry in run.after()
    ]


def write_comparison(comparison: Comparison, folder: Path, *, mode: int = 0o644) -> None:
    """Writes report.md, table.csv and report.html into a folder, made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = (markdown(comparison), csv_table(comparison), page(comparison))
    for name, text in zip(FILES, texts, strict=True):
        write_text(folder / name, text, mode=mode)


def _parts(comparison: Comparison) -> dict[str, Any]:
    settings = comparison.settings
    runs = sum(len(setting.runs) for setting in settings)
    several = any(len(setting.runs) > 1 for setting in settings)
    apart = len(bases(run for setting in settings for run in setting.runs)) > 1
    return {
        "title": f"{runs} runs, {len(settings)} settings",
        "keys": comparison.keys,
        "columns": [key for key in comparison.keys if key != EPS],
        "settings": settings,
        "epsilons": [printed_epsilon(setting.runs, with_basis=apart) for setting in settings],
        "parameters": [parameters(setting.runs[0]) for setting in settings],
        "splits": comparison.splits,
        "pivots": [
            [
                (pivot, published_pivots(pivot, split, settings))
                for pivot in comparison.pivots(split)
            ]
            for split in comparison.splits
        ],
        "costs": comparison.costs,
        "left_out": comparison.left_out,
        "hidden": sorted(
            {
                f"{entry.task}, split {entry.split}"
                for setting in settings
                for run in setting.runs
                for entry in run.after()
                if entry.is_private and not entry.metrics
            }
        ),
        "private_metrics": PRIVATE_METRICS,
        "bold_note": BOLD_NOTE if several else "",
        "private_split": PRIVATE_SPLIT,
    }
