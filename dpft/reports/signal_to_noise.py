"""Final scores of runs against the signal-to-noise ratio of their first updates; private.

Li et al. 2022 (arXiv 2110.05679), Figure 3, right. The ratios are of the records, which no epsilon
covers, so the page goes into a ``private/`` folder. It is drawn only where it is asked for.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from dpft.errors import InputError
from dpft.files import DIAGNOSTICS, SIGNAL_TO_NOISE, private_path, write_text
from dpft.privacy.noise import SIGNAL_STEPS
from dpft.reports.comparison import Comparison, Setting, Split
from dpft.reports.pages import render_html, scatter_plot
from dpft.reports.run_record import RunRecord

AXIS = f"mean signal-to-noise ratio of the first {SIGNAL_STEPS} updates"
OWNERS = "it reads the records, no epsilon covers it, and it stays with the owner of the data"
"""What is said of the page wherever it is named."""
Ratios = Mapping[Path, list[float]]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """The final scores by one metric on one split."""

    heading: str
    scores: dict[Path, float]
    """By the run's folder; a run that was not scored so is not there."""
    plot: Markup


def write_signal_to_noise(comparison: Comparison, ratios: Ratios, folder: Path) -> Path:
    """Writes a table, and a plot for each metric, into the folder's ``private/``.

    Args:
        comparison: The runs, and which metrics are drawn of them.
        ratios: Those of each run's first updates, by its folder.
        folder: Where reports of the runs go; made if need be.

    Returns:
        The page, mode 0600.

    Raises:
        InputError: The first updates of a run were not measured.
    """
    _check_measured(ratios)
    panels = [
        _panel(comparison, split, metric, ratios, name=f"signal{number}-{place}")
        for number, split in enumerate(comparison.splits)
        for place, metric in enumerate(comparison.shown(split))
    ]
    page = render_html(
        "signal_to_noise.html.j2",
        title="Final scores against signal to noise",
        owners=OWNERS,
        keys=comparison.keys,
        runs=_runs(comparison),
        ratios=ratios,
        means={run: statistics.fmean(of_run) for run, of_run in ratios.items()},
        panels=panels,
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = private_path(folder, SIGNAL_TO_NOISE)
    write_text(path, page, mode=0o600)
    return path


def _check_measured(ratios: Ratios) -> None:
    missing = [str(folder) for folder, of_run in ratios.items() if not of_run]
    if missing:
        raise InputError(
            f"signal_to_noise=true needs runs whose {DIAGNOSTICS} has the signal and the noise of"
            f" their first {SIGNAL_STEPS} updates, got {', '.join(missing)} without; a run has none"
            " that was not private, was trained before dpft measured it, or was handed on without"
            " its private folder: leave it out."
        )


def _runs(comparison: Comparison) -> list[tuple[Setting, RunRecord]]:
    return [(setting, run) for setting in comparison.settings for run in setting.runs]


def _panel(
    comparison: Comparison, split: Split, metric: str, ratios: Ratios, *, name: str
) -> Panel:
    scores: dict[Path, float] = {}
    series: dict[str, list[tuple[float, float]]] = {}
    for setting, run in _runs(comparison):
        score = _score(run, split, metric)
        if score is not None:
            scores[run.folder] = score
            label = ", ".join(setting.label(key) for key in comparison.keys)
            point = (statistics.fmean(ratios[run.folder]), score)
            series.setdefault(label, []).append(point)
    keys = ", ".join(comparison.keys)
    where = f"{split.task}, {split.name}" if split.public else f"{split.task}, private {split.name}"
    return Panel(
        heading=f"{metric} on {where}",
        scores=scores,
        plot=scatter_plot(series, name=name, metric=metric, axis=AXIS, title=keys),
    )


def _score(run: RunRecord, split: Split, metric: str) -> float | None:
    """Returns a run's score after training on a split; None where it has none."""
    for entry in run.after():
        if (entry.task, entry.split) == (split.task, split.name):
            score: float | None = entry.metrics.get(metric)
            return score
    return None
