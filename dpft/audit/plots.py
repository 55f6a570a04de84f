"""Plots of audits: exposure, ROC curves, trade-off curves and lower bounds of epsilon."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from dpft.audit.guessing import LowerBound
from dpft.audit.trade_off import RocCurve, TradeOff, clopper_pearson
from dpft.reports.rendering import COLORS, draw_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 400
BAND = 200
"""Number of points of a measured curve at which its confidence interval is drawn."""


def exposure_histogram(exposures: Mapping[str, Sequence[float]], *, bits: float) -> Markup:
    """Return a histogram of exposures, with the distribution 2^-x of canaries never inserted."""
    largest = max([bits, *(value for group in exposures.values() for value in group)])
    edges = np.arange(0, math.ceil(largest) + 2)

    def draw(axes: "Axes") -> None:
        width = 0.8 / len(exposures)
        for number, (label, group) in enumerate(exposures.items()):
            shares = np.histogram(group, edges)[0] / len(group)
            left = edges[:-1] + 0.1 + width * number
            axes.bar(
                left, shares, width, align="edge", color=COLORS[(number + 1) % len(COLORS)],
                label=f"{label} ({len(group)})",
            )  # fmt: skip
        # Probability of one bar: 2^-x - 2^-(x + 1), which is half of 2^-x.
        expected = 2.0 ** -(edges[:-1] + 1)
        axes.stairs(
            expected, edges, baseline=None, color=COLORS[0], label="never inserted: P(≥ x) = 2⁻ˣ"
        )
        axes.axvline(bits, color="black", linewidth=0.8, linestyle=":")
        axes.annotate(
            "all suffixes", (bits, 1), xycoords=("data", "axes fraction"), xytext=(-3, -2),
            textcoords="offset points", rotation=90, ha="right", va="top",
        )  # fmt: skip
        axes.set(xlabel="exposure in bits", ylabel="share of canaries", xlim=(0, edges[-1]))
        axes.set_xticks(edges[:: max(1, len(edges) // 12)])
        _legend_above(axes)

    return draw_svg(
        draw, name="exposure", label="how many canaries reach which exposure", height=3.8
    )


def roc_plot(curves: Mapping[str, RocCurve], *, trade_off: TradeOff | None = None) -> Markup:
    """Return a log-log plot of true and false positive rates, with the limit of the mechanism."""
    least = min(1 / curve.non_members for curve in curves.values())
    lowest = min(1 / max(curve.members, curve.non_members) for curve in curves.values())
    rates = np.geomspace(least / 2, 1, POINTS)

    def draw(axes: "Axes") -> None:
        for number, (label, curve) in enumerate(curves.items()):
            axes.step(
                curve.false_positive_rates, curve.true_positive_rates, where="post",
                color=COLORS[(number + 1) % len(COLORS)], label=f"{label} (AUC {curve.auc:.3f})",
            )  # fmt: skip
        if trade_off is not None:
            axes.plot(
                rates,
                1 - trade_off(rates),
                color=COLORS[0],
                linestyle="--",
                label="upper bound by the mechanism",
            )
        axes.plot(rates, rates, color="#888888", linestyle=":", label="guessing blindly")
        axes.set(
            xscale="log", yscale="log", xlim=(least / 2, 1), ylim=(lowest / 2, 1.1),
            xlabel="false positive rate", ylabel="true positive rate",
        )  # fmt: skip
        for axis in (axes.xaxis, axes.yaxis):
            # The default labels of matplotlib are powers of ten, typeset as formulas.
            axis.set_major_formatter(lambda tick, _: f"{100 * tick:g} %")
        axes.minorticks_off()
        _legend_above(axes, columns=1)

    lines = 0.2 * len(curves)
    label = "true against false positive rates"
    return draw_svg(draw, name="roc", label=label, height=4.6 + lines)


def lower_bound_plot(bounds: Mapping[str, LowerBound], *, epsilon: float | None = None) -> Markup:
    """Return a plot of the lower bound of epsilon by number of guesses, with the upper bound."""

    def draw(axes: "Axes") -> None:
        from matplotlib.ticker import NullFormatter

        counts = sorted({guesses for bound in bounds.values() for guesses, _ in bound.curve})
        for number, (label, bound) in enumerate(bounds.items()):
            guesses, epsilons = zip(*bound.curve, strict=True)
            axes.plot(
                guesses, epsilons, marker="os^Dv"[number % 5],
                color=COLORS[(number + 1) % len(COLORS)],
                label=f"{label}, {100 * bound.confidence:.3g} %",
            )  # fmt: skip
        if epsilon is not None:
            axes.axhline(epsilon, color=COLORS[0], label="ε of the report (upper bound)")
        axes.set(xscale="log", xlabel="guesses", ylabel="lower bound of ε")
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.minorticks_off()
        axes.set_ylim(bottom=0, top=max(axes.get_ylim()[1], 1.0))
        _legend_above(axes)

    return draw_svg(
        draw, name="lower_bound", label="lower bounds of epsilon by guesses", height=3.8
    )


def trade_off_plot(measured: RocCurve, *, planned: TradeOff | None = None) -> Markup:
    """Return a plot of the measured trade-off curve, with the curve of the planned mechanism."""
    alarms = np.linspace(0, 1, POINTS)
    places = np.unique(np.linspace(0, len(measured.false_positives) - 1, BAND).astype(int))
    intervals = [
        clopper_pearson(measured.members - measured.true_positives[place], measured.members)
        for place in places
    ]

    def draw(axes: "Axes") -> None:
        rates = measured.false_positive_rates
        axes.plot(rates, 1 - measured.true_positive_rates, color=COLORS[1], label="measured")
        axes.fill_between(
            rates[places], [rate.lower for rate in intervals], [rate.upper for rate in intervals],
            color=COLORS[1], alpha=0.2, linewidth=0, label="95 % interval of each point",
        )  # fmt: skip
        if planned is not None:
            axes.plot(alarms, planned(alarms), color=COLORS[0], label="planned mechanism")
        axes.plot(alarms, 1 - alarms, color="#888888", linestyle=":", label="guessing blindly")
        axes.set(
            xlabel="false alarms (share of non-members)",
            ylabel="misses (share of members)",
            xlim=(0, 1), ylim=(0, 1),
        )  # fmt: skip
        axes.legend(frameon=False, loc="upper right")

    label = "misses against false alarms, as measured and as planned"
    return draw_svg(draw, name="trade_off", label=label, width=5.4, height=4.8)


def _legend_above(axes: "Axes", columns: int = 2) -> None:
    """Place the legend above the axes, where it cannot cover a curve."""
    axes.legend(
        frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2
    )
