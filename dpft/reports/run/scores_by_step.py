"""How the scores of a public split grew while a run trained, from scores_by_step.json.

A series begins with the scores before training and ends with those after it, which metrics.json
has. Scores of a public split cost nothing; epsilon beside them is that of the steps so far.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from dpft.errors import StateError
from dpft.files import read_json
from dpft.privacy.accounting.rounding import round_up, up
from dpft.reports.run.metric_words import main_metric
from dpft.reports.run.run_record import guarantee
from dpft.reports.svg import COLORS, draw_svg
from dpft.run_folder import SCORES_BY_STEP

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
                "–" if epsilon is None else up(epsilon),
                [scores.get(m) for m in self.metrics],
            )
            for step, epsilon, scores in self.rows
        ]


def read_points(folder: Path) -> dict[str, Any]:
    """Returns the content of a run's scores_by_step.json; nothing of a run that has none.

    Raises:
        InputError: It is of another schema version.
        StateError: It is damaged.
    """
    path = folder / SCORES_BY_STEP
    if not path.exists():
        return {}
    content = read_json(path)
    points = content.get("points")
    if not isinstance(points, list) or not all(_is_point(point) for point in points):
        raise StateError(
            f"{path} is damaged: its points must be a list of objects with step and evaluations;"
            " put it back, or remove it to report without it."
        )
    return content


def series_of(
    content: Mapping[str, Any],
    privacy: Mapping[str, Any],
    evaluations: Sequence[Mapping[str, Any]],
) -> list[Series]:
    """Returns a series for each task and split that is public; none where nothing was scheduled.

    Args:
        content: Of scores_by_step.json, or nothing.
        privacy: Content of privacy.json.
        evaluations: Entries of metrics.json.
    """
    private = {(e["task"], e["split"]) for e in evaluations if e["split_is_public"] is not True}
    found: dict[tuple[str, str], list[Row]] = {}
    for step, epsilon, entries in _points(content, privacy, evaluations):
        for entry in entries:
            place = (entry["task"], entry["split"])
            if place not in private:
                found.setdefault(place, []).append((step, epsilon, entry["metrics"]))
    scheduled = {
        (entry["task"], entry["split"])
        for point in content.get("points", ())
        for entry in point["evaluations"]
    }
    return [
        Series(
            task=task,
            split=split,
            every=content["every"],
            metrics=list(dict.fromkeys(name for _, _, scores in rows for name in scores)),
            rows=_never_falling(rows),
        )
        for (task, split), rows in found.items()
        if (task, split) in scheduled
    ]


def series_plot(series: Series, config: Mapping[str, Any], name: str) -> Markup | None:
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
    content: Mapping[str, Any],
    privacy: Mapping[str, Any],
    evaluations: Sequence[Mapping[str, Any]],
) -> list[tuple[int, float | None, list[Mapping[str, Any]]]]:
    """Returns step, epsilon and entries of each point, before and after training among them."""
    if not content:
        return []
    promised = "epsilon" in privacy
    last = min(privacy["steps"], privacy.get("steps_taken", privacy["steps"]))
    ends = {
        "before": (0, 0.0 if promised else None),
        "after": (last, guarantee(privacy)[0] if promised else None),
    }
    points = [(p["step"], p.get("epsilon"), p["evaluations"]) for p in content["points"]]
    for entry in evaluations:
        if entry["metrics"] and entry["stage"] in ends:
            points.append((*ends[entry["stage"]], [entry]))
    return sorted(points, key=lambda point: point[0])


def _never_falling(rows: list[Row]) -> list[Row]:
    """Returns the rows with the least bound that holds: fewer steps spend no more than more do."""
    bounded, least = [], float("inf")
    for step, epsilon, scores in reversed(rows):
        least = least if epsilon is None else min(least, epsilon)
        bounded.append((step, None if epsilon is None else least, scores))
    return bounded[::-1]


def _is_point(point: Any) -> bool:
    if not isinstance(point, Mapping) or not isinstance(point.get("step"), int):
        return False
    entries = point.get("evaluations")
    return isinstance(entries, list) and all(
        isinstance(entry, Mapping) and {"task", "split", "metrics"} <= set(entry)
        for entry in entries
    )
