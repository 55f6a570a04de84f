"""How the scores of a public split grew while a run trained, from scores_by_step.json.

A series begins with the scores before training and ends with those after it, which metrics.json
has. Scores of a public split cost nothing; epsilon beside them is that of the steps so far.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from dpft.privacy.accounting.summary import eps_text, round_up
from dpft.records.configuration import RunConfiguration
from dpft.records.privacy_file import RunPrivacy, guarantee
from dpft.records.promises import PrivateRun
from dpft.records.scores import ScoreEntry, ScoresByStep, StepScores
from dpft.reports.plots import COLORS, draw_svg
from dpft.reports.run.scores import main_metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_TICKS = 8
Row = tuple[int, float | None, Mapping[str, float]]
"""Steps taken, an upper bound of what they spent, None without privacy, and the scores."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """The scores of one split at several steps."""

    task: str
    split: str
    every: int
    """Steps between two points, as they were asked for."""
    metrics: list[str]
    rows: list[Row]

    def printed(self) -> list[tuple[str, str, list[float | None]]]:
        """Returns each row's step, epsilon and scores, as a table has them."""
        return [
            (
                str(step),
                "–" if epsilon is None else eps_text(epsilon),
                [scores.get(m) for m in self.metrics],
            )
            for step, epsilon, scores in self.rows
        ]


def series_of(
    by_step: ScoresByStep | None,
    privacy: RunPrivacy,
    evaluations: Sequence[ScoreEntry],
) -> list[Series]:
    """Returns a series for each task and split that is public; none where nothing was scheduled.

    Args:
        by_step: What scores_by_step.json says; None: there is none.
        privacy: Content of privacy.json.
        evaluations: Entries of metrics.json.
    """
    if by_step is None:
        return []
    private = {entry.place[:2] for entry in evaluations if not entry.split_is_public}
    found: dict[tuple[str, str], list[Row]] = {}
    for step, epsilon, entries in _points(by_step, privacy, evaluations):
        for entry in entries:
            place = (entry.task, entry.split)
            if place not in private:
                found.setdefault(place, []).append((step, epsilon, entry.metrics))
    scheduled = {
        (entry.task, entry.split) for point in by_step.points for entry in point.evaluations
    }
    return [
        Series(
            task=task,
            split=split,
            every=by_step.every,
            metrics=list(dict.fromkeys(name for _, _, scores in rows for name in scores)),
            rows=_never_falling(rows),
        )
        for (task, split), rows in found.items()
        if (task, split) in scheduled
    ]


def series_plot(series: Series, config: RunConfiguration, name: str) -> Markup | None:
    """Returns the main score against steps, epsilon above them; None where no metric leads.

    Args:
        series: Its points.
        config: Content of config.yaml.
        name: Of the figure.
    """
    metric = main_metric(config, series.metrics)
    if metric is None:
        return None
    rows = [(step, eps, scores[metric]) for step, eps, scores in series.rows if metric in scores]
    if len(rows) < 2:
        return None
    from matplotlib.ticker import MaxNLocator

    def draw(axes: "Axes") -> None:
        steps, scores = [step for step, _, _ in rows], [score for _, _, score in rows]
        axes.plot(steps, scores, "o-", color=COLORS[0], clip_on=False)
        axes.set(xlabel="steps taken", ylabel=metric, xlim=(0, steps[-1]))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        spent = [(step, eps) for step, eps, _ in rows if eps is not None]
        if spent:
            shown = spent[:: -(-len(spent) // MOST_TICKS)]
            above = axes.secondary_xaxis("top")
            ticks = [f"{round_up(epsilon, 2):.2f}" for _, epsilon in shown]
            above.set_xticks([step for step, _ in shown], ticks)
            above.set_xlabel("ε spent, at most")

    first, last = rows[0], rows[-1]
    label = (
        f"{metric} on split {series.split} from {first[2]:.4g} after {first[0]} steps to"
        f" {last[2]:.4g} after {last[0]}"
    )
    return draw_svg(draw, name=name, label=label)


def _points(
    by_step: ScoresByStep,
    privacy: RunPrivacy,
    evaluations: Sequence[ScoreEntry],
) -> list[tuple[int, float | None, Sequence[StepScores | ScoreEntry]]]:
    """Returns step, epsilon and entries of each point, before and after training among them."""
    ends: dict[str, tuple[int, float | None]]
    ends = {"before": (0, None), "after": (privacy.steps, None)}
    if isinstance(privacy, PrivateRun):
        last = min(privacy.steps, privacy.steps_taken)
        ends = {"before": (0, 0.0), "after": (last, guarantee(privacy)[0])}
    points: list[tuple[int, float | None, Sequence[StepScores | ScoreEntry]]] = [
        (point.step, point.epsilon, point.evaluations) for point in by_step.points
    ]
    shown = [entry for entry in evaluations if entry.metrics and entry.stage in ends]
    points += [(*ends[entry.stage], [entry]) for entry in shown]
    return sorted(points, key=lambda point: point[0])


def _never_falling(rows: list[Row]) -> list[Row]:
    """Returns the rows with the least bound that holds: fewer steps spend no more than more do."""
    bounded, least = [], float("inf")
    for step, epsilon, scores in reversed(rows):
        least = least if epsilon is None else min(least, epsilon)
        bounded.append((step, None if epsilon is None else least, scores))
    return bounded[::-1]
