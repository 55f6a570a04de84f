"""Plots of accounting: epsilon over steps, effective noise over batch sizes; SVG or PNG.

matplotlib is imported when a plot is drawn, without pyplot: no window, no global state.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpft.files import write_bytes
from dpft.privacy.accounting.batch_sizes import BatchSizeNoise, Budget, Division, square_root_rule
from dpft.privacy.accounting.summary import AccountingReport
from dpft.records.bounds import Interval, NoAnswer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = {"rdp": "--", "pld": "-.", "prv": "-", "gdp": ":"}
Panels = Sequence[tuple[str, Sequence[BatchSizeNoise]]]


def plot_epsilon_over_steps(reports: Sequence[AccountingReport], path: Path) -> None:
    """Draws every accountant's epsilon over steps; gdp, which bounds nothing, is dotted.

    Args:
        reports: The points, ascending.
        path: File to write; its suffix says what.
    """
    figure, (axes,) = _figure(1)
    for name, style in STYLES.items():
        points = [(report.mechanism.steps, _value(report, name)) for report in reports]
        known = [(steps, value) for steps, value in points if value is not None]
        if known:
            label = f"{name} (estimate, no bound)" if name == "gdp" else f"{name} (upper bound)"
            axes.plot(*zip(*known, strict=True), style, marker=".", label=label)
    axes.set(
        xlabel="steps",
        ylabel="epsilon",
        title=f"epsilon at delta = {reports[0].mechanism.delta:.3g}",
        ylim=(0, None),
    )
    axes.legend(frameon=False)
    _write(figure, path)


def plot_effective_noise(panels: Panels, path: Path) -> None:
    """Draws effective noise multipliers over sample rates, the square-root rule beside them.

    Args:
        panels: What was fixed, in words, and the points, ascending; one plot each.
        path: File to write; its suffix says what.
    """
    figure, all_axes = _figure(len(panels))
    for axes, (fixed, points) in zip(all_axes, panels, strict=True):
        rates = [point.sample_rate for point in points]
        computed = [point.effective_noise_multiplier for point in points]
        known = [(rate, value) for rate, value in zip(rates, computed, strict=True) if value]
        if known:
            axes.loglog(*zip(*known, strict=True), marker="o", label="computed")
            rule = [value for value in square_root_rule(points) if value is not None]
            axes.loglog(rates, rule, "--", label="square-root rule")
            axes.legend(frameon=False)
        axes.set(xlabel="sample rate", ylabel="noise multiplier / sample rate", title=fixed)
    _write(figure, path)


def plot_noise_batch_ratio(
    curves: Mapping[int, Sequence[BatchSizeNoise]],
    found: Sequence[Division],
    best: Division,
    budget: Budget,
    path: Path,
) -> None:
    """Draws the noise-batch ratio over batch sizes, at fixed steps and along a budget of tokens.

    Args:
        curves: Number of steps to the noise at each batch size, ascending.
        found: Divisions of the budget.
        best: The one that is advised.
        budget: Of tokens and of privacy.
        path: File to write; its suffix says what.
    """
    figure, (axes,) = _figure(1)
    for steps, points in curves.items():
        known = [
            (point.expected_batch_size, point.noise_multiplier / point.expected_batch_size)
            for point in points
            if point.noise_multiplier is not None
        ]
        if known:
            axes.loglog(*zip(*known, strict=True), marker=".", label=f"{steps:,} steps")
    along = [(each.expected_batch_size, each.noise_batch_ratio) for each in found]
    axes.loglog(*zip(*along, strict=True), "k--", marker="o", mfc="none", label="the budget")
    axes.plot(
        best.expected_batch_size, best.noise_batch_ratio, "k*", markersize=14, label="advised"
    )
    axes.annotate(
        f"{best.steps:,} steps",
        (best.expected_batch_size, best.noise_batch_ratio),
        xytext=(8, 8),
        textcoords="offset points",
    )
    axes.set(
        xlabel="expected batch size",
        ylabel="noise multiplier / batch size",
        title=f"{budget.num_examples:,} examples, epsilon = {budget.eps:g},"
        f" {budget.tokens:.3g} tokens",
    )
    axes.legend(frameon=False)
    _write(figure, path)


def _figure(panels: int) -> "tuple[Figure, Sequence[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * panels, 4), layout="constrained")
    return figure, figure.subplots(1, panels, squeeze=False)[0]


def _write(figure: "Figure", path: Path) -> None:
    """Writes the figure, the same bytes for the same numbers."""
    from matplotlib import rc_context

    content = io.BytesIO()
    kind = path.suffix.removeprefix(".")
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with rc_context({"svg.hashsalt": "dpft", "svg.fonttype": "none"}):
        figure.savefig(content, format=kind, metadata=metadata, dpi=150)
    write_bytes(path, content.getvalue())


def _value(report: AccountingReport, name: str) -> float | None:
    answer = report.epsilons[name]
    if isinstance(answer, Interval):
        return answer.upper
    return None if isinstance(answer, NoAnswer) else answer
