"""The plots of an audit of synthetic records: lengths, n-grams, stretches of real records."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from dpft.audit.leakage import Leakage, allowed_share
from dpft.audit.text_quality import Likeness
from dpft.reports.svg import COLORS, draw_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 30
"""About how many; each is as many words wide as the next."""


def lengths_plot(lengths: Mapping[str, Sequence[int]]) -> Markup:
    """Returns how long texts are: the share of each kind's texts by words.

    Args:
        lengths: Words of each text, by what the texts are called.
    """
    from matplotlib.ticker import MaxNLocator

    most = max(max(each) for each in lengths.values())
    width = 1 + most // BINS
    edges = np.arange(0, most + width + 1, width)

    def draw(axes: "Axes") -> None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for number, (name, each) in enumerate(lengths.items()):
            shares = np.histogram(each, edges)[0] / len(each)
            axes.stairs(shares, edges, label=name, color=COLORS[number], linewidth=1.8)
        axes.set(xlabel="words of a text", ylabel="share of the texts")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)

    return draw_svg(draw, name="lengths", label="how many words the texts have")


def divergence_plot(likeness: Likeness, reference: str) -> Markup:
    """Returns the divergence of n-grams from the real texts, and between two halves of these.

    Args:
        likeness: Synthetic texts against real ones.
        reference: What the real ones are.
    """
    sizes = list(likeness.divergences)
    bars = {
        f"synthetic against {reference}": likeness.divergences,
        f"{reference} against themselves": likeness.control,
    }

    def draw(axes: "Axes") -> None:
        for number, (name, values) in enumerate(bars.items()):
            places = [at + 0.38 * (number - 0.5) for at in range(len(sizes))]
            shown = [values[n] for n in sizes]
            drawn = axes.bar(places, shown, 0.36, label=name, color=COLORS[number])
            axes.bar_label(drawn, fmt="%.2f", padding=2)
        axes.set_xticks(range(len(sizes)), [f"{n} word{'s' * (n > 1)}" for n in sizes])
        axes.set(ylabel="divergence, bits", ylim=(0, 1.3))
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
        axes.grid(False, axis="x")
        axes.legend(frameon=False, loc="upper left")

    return draw_svg(draw, name="ngrams", label="divergence of the n-grams from those of real texts")


def runs_plot(leakage: Leakage, promise: tuple[float, float] | None) -> Markup:
    """Returns of what share of the records so many words in a row stand in the synthetic text.

    Args:
        leakage: Of training records, and of others where there are any.
        promise: Epsilon and delta, by which the share of training records is bounded by that of
            others; None where there are none.
    """
    from matplotlib.ticker import MaxNLocator

    unseen = leakage.unseen
    longest = max(max(one.longest) for one in (leakage.training, unseen) if one is not None)
    words = list(range(longest + 2))
    curves = {"training records": [leakage.training.share_of_runs(n) for n in words]}
    if unseen is not None:
        curves["records not trained on"] = [unseen.share_of_runs(n) for n in words]
    fewest = 1 / max(len(one.longest) for one in (leakage.training, unseen) if one is not None)

    def draw(axes: "Axes") -> None:
        for number, (name, each) in enumerate(curves.items()):
            axes.step(words, each, where="mid", label=name, color=COLORS[number], linewidth=1.8)
        if unseen is not None and promise is not None:
            bound = [allowed_share(unseen.limit_of_share(n), *promise) for n in words]
            label = "most that ε allows of training records"
            axes.step(words, bound, where="mid", label=label, color=COLORS[7], linestyle="--")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_yscale("log")
        axes.set_ylim(fewest / 2, 1.3)
        axes.yaxis.set_major_formatter(lambda tick, _: f"{tick:g}")
        axes.minorticks_off()
        axes.set(xlabel="words in a row in one synthetic text", ylabel="share of records")
        axes.legend(frameon=False)

    return draw_svg(
        draw,
        name="runs",
        label="share of records by their longest stretch in synthetic text",
        height=3.8,
    )
