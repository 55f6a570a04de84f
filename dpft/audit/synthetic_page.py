"""The two pages of an audit of synthetic records: one for the owner, and one to release.

What is released is made of ``Released`` alone, which holds the synthetic text, what its statement
says, and a comparison with a split that is published. A reader who has the synthetic file and that
split can compute all of it, so it tells no more of private records than these do.
"""

from dataclasses import dataclass
from typing import Any

from dpft import __version__
from dpft.audit.synthetic_plots import divergence_plot, lengths_plot, runs_plot
from dpft.audit.synthetic_result import OWNERS, Quality, SyntheticResult
from dpft.audit.text_quality import MAUVE, Likeness, TextShape
from dpft.audit.utility import ClassifierScores
from dpft.reports.pages import render_html
from dpft.reports.run.figures import tone_of

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
