"""The two pages of an audit of synthetic records: for the owner, and to release; with plots.

What is released is made of ``Released`` alone, which holds the synthetic text, what its statement
says, and a comparison with a split that is published. A reader who has the synthetic file and that
split can compute all of it, so it tells no more of private records than these do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from dpft import __version__
from dpft.audit.leakage import Leakage, allowed_share
from dpft.audit.synthetic_result import OWNERS, Quality, SyntheticResult
from dpft.audit.text_quality import MAUVE, Likeness, TextShape
from dpft.records.audits import ClassifierScores
from dpft.reports.pages import COLORS, draw_svg, render_html
from dpft.reports.scores import tone_of

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


TEMPLATE = "synthetic_audit.html.j2"
TAUGHT, COMMONEST = "synthetic records", "none: always the commonest class"
"""What a classifier that may be released is taught by."""


@dataclass(frozen=True, kw_only=True)
class Released:
    """What may be released of an audit."""

    file: str
    notes: tuple[str, ...]
    shape: TextShape
    quality: Quality | None
    """Against a split that is published; else None."""
    scores: dict[str, ClassifierScores | str]
    """What a classifier learns of the synthetic records, tested on that split."""


def releasable(result: SyntheticResult) -> Released:
    """Returns what of an audit is a function of the synthetic records and of published ones."""
    quality = result.quality if result.quality is not None and result.quality.public else None
    utility = None if quality is None or isinstance(result.utility, str) else result.utility
    return Released(
        file=result.file.path.name,
        notes=result.file.notes,
        shape=result.shape,
        quality=quality,
        scores={} if utility is None else {TAUGHT: utility.synthetic, COMMONEST: utility.commonest},
    )


def released_page(result: SyntheticResult) -> str:
    """Returns the page that may be released."""
    content = releasable(result)
    return render_html(
        TEMPLATE,
        owners=None,
        headline=list(content.notes),
        tone=tone_of(result.promise),
        leakage=None,
        **_parts(content.file, content.shape, content.quality, content.scores),
    )


def private_page(result: SyntheticResult) -> str:
    """Returns the page for the owner of the data."""
    utility, scores = result.utility, {}
    if not isinstance(utility, str):
        scores = {
            TAUGHT: utility.synthetic,
            "training records": utility.training,
            COMMONEST: utility.commonest,
        }
    return render_html(
        TEMPLATE,
        owners=OWNERS,
        headline=list(result.file.notes),
        tone=tone_of(result.promise),
        leakage=_leakage_parts(result),
        **_parts(result.file.path.name, result.shape, result.quality, scores),
    )


def _parts(
    file: str,
    shape: TextShape,
    quality: Quality | None,
    scores: dict[str, ClassifierScores | str],
) -> dict[str, Any]:
    """Returns what both pages show."""
    shapes = {"synthetic": shape.record()}
    lengths = {"synthetic": shape.lengths}
    alike: Likeness | str | None = None
    if quality is not None:
        shapes[quality.reference] = quality.shape.record()
        lengths[quality.reference] = quality.shape.lengths
        alike = quality.likeness
    return {
        "title": f"Synthetic records: {file}",
        "version": __version__,
        "shapes": shapes,
        "lengths": lengths_plot(lengths),
        "reference": None if quality is None else quality.reference,
        "likeness": alike if isinstance(alike, Likeness) else None,
        "not_compared": alike if isinstance(alike, str) else None,
        "ngrams": divergence_plot(alike, quality.reference)
        if quality is not None and isinstance(alike, Likeness)
        else None,
        "scores": {name: one for name, one in scores.items() if not isinstance(one, str)},
        "no_scores": {name: one for name, one in scores.items() if isinstance(one, str)},
        "mauve": MAUVE,
    }


def _leakage_parts(result: SyntheticResult) -> dict[str, Any]:
    """Returns what the owner alone is shown."""
    leakage = result.leakage
    sides = {}
    if leakage is not None:
        sides["training records"] = leakage.training.record()
        if leakage.unseen is not None:
            sides["records not trained on"] = leakage.unseen.record()
    return {
        "found": leakage,
        "sides": sides,
        "runs": None if leakage is None else runs_plot(leakage, result.promise),
        "bounded": result.promise if leakage is not None and leakage.unseen is not None else None,
        "most_found": result.most_found,
        "canaries": result.canaries,
        "not_there": result.not_there,
        "why_private": result.file.why_private,
        "no_utility": result.utility if isinstance(result.utility, str) else None,
    }
