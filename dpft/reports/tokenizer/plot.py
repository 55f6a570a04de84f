"""Noisy counts by rank, down to the threshold."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from dpft.reports.svg import COLORS, draw_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def counts_plot(counts: Sequence[int], threshold: float) -> Markup:
    """Returns the released counts, the largest first, on logarithmic axes, and the threshold.

    Args:
        counts: One or more, each at least 1.
        threshold: Below which nothing was released.
    """
    from matplotlib.ticker import NullFormatter

    def draw(axes: "Axes") -> None:
        ranked = sorted(counts, reverse=True)
        axes.loglog(range(1, len(ranked) + 1), ranked, marker=".", color=COLORS[0])
        axes.axhline(threshold, color="black", linewidth=0.8, linestyle=":")
        axes.annotate(
            f"threshold {threshold:.3g}", (0, threshold), xycoords=("axes fraction", "data"),
            xytext=(3, 3), textcoords="offset points", ha="left", va="bottom",
        )  # fmt: skip
        axes.set(xlabel="rank of the word", ylabel="noisy count")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())

    return draw_svg(draw, name="counts", label="noisy counts by rank")
