"""What people's ratings say of each system: means with 95 % intervals, and their table.

Li et al. 2022 (arXiv 2110.05679, Table 3 and Appendix K) give the mean over all ratings of a system
and its asymptotic 95 % interval. Here the interval is Student's t, which at few ratings is wider as
it must be: mean ± t(0.975, n - 1) · s / √n over the n ratings. Like theirs it counts each rating as
independent. Several ratings of one response, or by one person, are not quite; the interval is then
too narrow. The mean over items, each item's own mean counted once, stands beside it.
"""

import statistics
import textwrap
from collections.abc import Sequence

from dpft.records.scores import PRIVATE_SPLIT, RatedSystem, RatingsReport

LEVEL = 0.95
INDEPENDENT = (
    "95 % interval: Student's t over the ratings, each counted as independent of the others."
    " Several ratings of one response, or by one person, are not quite: it is then too narrow."
)


def rating_record(system: str, ratings: Sequence[tuple[int, int]]) -> RatedSystem:
    """Returns what the ratings say of a system; mean and interval are None where too few say it.

    Args:
        system: What it is called.
        ratings: Item and value of each of its ratings.
    """
    values = [value for _, value in ratings]
    items: dict[int, list[int]] = {}
    for item, value in ratings:
        items.setdefault(item, []).append(value)
    means = [statistics.fmean(each) for each in items.values()]
    return RatedSystem(
        system=system,
        ratings=len(values),
        items=len(items),
        mean=statistics.fmean(values) if values else None,
        interval=mean_interval(values),
        mean_over_items=statistics.fmean(means) if means else None,
    )


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Returns the ends of Student's 95 % interval of the mean; None for fewer than two values."""
    from scipy import stats

    if len(values) < 2:
        return None
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1))
    half = quantile * deviation / len(values) ** 0.5
    return mean - half, mean + half


def ratings_table(report: RatingsReport) -> str:
    """Returns the means as lines of text."""
    systems = report.systems
    width = max(len("system"), *(len(each.system) for each in systems))
    lines = [
        f"{report.task}, split {report.split}: {_counted(report.ratings, 'rating')} by"
        f" {_counted(report.raters, 'rater')}, {_counted(report.not_rated, 'row')} not rated",
        f"{'system':<{width}}  ratings  items   mean  95 % interval   mean over items",
        *(_line(system, width) for system in systems),
    ]
    if any(system.ratings == 1 for system in systems):
        lines.append("One rating has no interval.")
    lines += textwrap.wrap(INDEPENDENT, 88)
    return "\n".join(lines if report.split_is_public else [*lines, PRIVATE_SPLIT])


def _line(rated: RatedSystem, width: int) -> str:
    interval = rated.interval
    ends = "none" if interval is None else f"({interval[0]:.2f}, {interval[1]:.2f})"
    return (
        f"{rated.system:<{width}}  {rated.ratings:>7}  {rated.items:>5}"
        f"  {_mean(rated.mean):>5}  {ends:<14}  {_mean(rated.mean_over_items):>15}"
    )


def _mean(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
