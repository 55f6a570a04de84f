"""What an audit of exposure says: bits by number of repetitions, as in Li et al. 2022, Table 9."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from dpft.audit.base import Finding
from dpft.audit.exposure import chance_bound, exact_exposure, fit_skew_normal, mean_bound
from dpft.audit.plots import exposure_histogram
from dpft.audit.suffix_scores import SuffixScores
from dpft.data.canaries import Canary
from dpft.privacy.plan import EXAMPLE
from dpft.records.audits import ExposureAudit, ExposureGroup, ExposureTable, Spread
from dpft.records.form import joined
from dpft.records.privacy_file import RunPrivacy
from dpft.records.promises import OpenRun

NEVER = 1 / math.log(2)
"""Mean exposure of a canary that was never inserted, in bits."""


@dataclass(frozen=True, kw_only=True)
class Exposed:
    """The exposure of one canary in one model, in bits."""

    exact: float
    """By its rank among all suffixes."""
    fitted: float
    """By a skew-normal distribution, which may go beyond what ranks can show."""
    goodness_of_fit: float
    """Statistic of Kolmogorov and Smirnov of that fit; 0 is perfect."""
    suffixes: int


def exposed(scores: SuffixScores) -> Exposed:
    """Returns the exposure of a canary."""
    fit = fit_skew_normal(scores.all)
    return Exposed(
        exact=exact_exposure(scores.own, scores.all),
        fitted=fit.exposure(scores.own),
        goodness_of_fit=fit.distance,
        suffixes=len(scores.all),
    )


def finding(
    canaries: Sequence[Canary],
    after: Sequence[Exposed],
    before: Sequence[Exposed],
    privacy: RunPrivacy,
) -> Finding:
    """Returns what was read out, by number of repetitions.

    Args:
        canaries: Those of the secret sharer.
        after: Of each, in the trained model.
        before: Of each, in the model before fine-tuning.
        privacy: What the run promises.
    """
    places: dict[int, list[int]] = {}
    for place, canary in enumerate(canaries):
        places.setdefault(canary.copies, []).append(place)
    groups = [_group(number, places[number], after, before) for number in sorted(places)]
    rows = [_row(group) for group in groups]
    largest = math.log2(after[0].suffixes)
    released = ExposureTable(repetitions=tuple(groups), rows=tuple(rows), largest_exposure=largest)
    shown = {_name(each): [after[at].exact for at in places[each]] for each in sorted(places)}
    return Finding(
        record=joined(ExposureAudit, released, goodness_of_fit=_worst(after)),
        rows=[*rows, ("the most that a rank can show", f"{largest:.2f} bits")],
        notes=_notes(groups, privacy, canaries, after),
        figures={"exposure": exposure_histogram(shown, bits=largest)},
        released=released,
    )


def _group(
    copies: int, places: Sequence[int], after: Sequence[Exposed], before: Sequence[Exposed]
) -> ExposureGroup:
    return ExposureGroup(
        copies=copies,
        canaries=len(places),
        exact=_spread([after[at].exact for at in places]),
        fitted=_spread([after[at].fitted for at in places]),
        exact_before=_spread([before[at].exact for at in places]),
        goodness_of_fit=max(after[at].goodness_of_fit for at in places),
    )


def _spread(values: Sequence[float]) -> Spread:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return Spread(mean=statistics.fmean(values), standard_deviation=deviation)


def _row(group: ExposureGroup) -> tuple[str, str]:
    value = (
        f"{_said(group.exact)} bits by rank, {_said(group.fitted)} by fit (K-S"
        f" {group.goodness_of_fit:.3f}), {_said(group.exact_before)} before fine-tuning; canaries:"
        f" {group.canaries}"
    )
    return f"exposure, {_name(group.copies)}", value


def _said(spread: Spread) -> str:
    return f"{spread.mean:.2f} ± {spread.standard_deviation:.2f}"


def _name(copies: int) -> str:
    said = {0: "never inserted", 1: "inserted once"}
    return said.get(copies, f"inserted {copies} times")


def _worst(found: Sequence[Exposed]) -> float:
    return max(each.goodness_of_fit for each in found)


def _notes(
    groups: Sequence[ExposureGroup],
    privacy: RunPrivacy,
    canaries: Sequence[Canary],
    after: Sequence[Exposed],
) -> list[str]:
    notes = [
        f"A canary that was never inserted has {NEVER:.2f} bits in the mean, and x bits or more"
        " with a chance of 2^-x. What is by fit goes beyond the ranks by trusting a skew-normal"
        " distribution, whose distance from the scores is beside it (K-S: 0 is perfect)."
    ]
    if isinstance(privacy, OpenRun):
        return [*notes, "The run was trained without privacy: nothing bounds what can be read out."]
    epsilon, delta = float(privacy.epsilon), float(privacy.delta)
    once = next((group for group in groups if group.copies == 1), None)
    if once is None or privacy.unit != EXAMPLE:
        return notes
    most = mean_bound(epsilon=epsilon, delta=delta, candidates=after[0].suffixes)
    found = max(
        each.exact for each, canary in zip(after, canaries, strict=True) if canary.copies == 1
    )
    # of any of them: each has that chance at most, and the largest of several is not one at random
    number = once.canaries
    chance = min(1.0, number * chance_bound(found, epsilon=epsilon, delta=delta))
    return [
        *notes,
        f"Of a canary inserted once, ε = {epsilon:.2f} allows {most:.2f} bits in the mean, and of"
        f" any of {number} the {found:.2f} bits found of one, or more, with a chance of at most"
        f" {chance:.2g}; of one inserted r times it allows r times the ε.",
    ]
