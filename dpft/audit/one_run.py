"""The findings of ``audit=one_run``: lower bounds of epsilon beside the report's own.

They are those of ``dpft.audit.guessing``: of any mechanism, of a Gaussian one, and against the
trade-off curve of the run's own plan, which finds a mechanism that is not the one accounted for
even where its epsilon still holds. Several kinds of attacker (`View`) share the confidence.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from dpft.audit.base import Finding
from dpft.audit.guessing import (
    Contradiction,
    LowerBound,
    best_lower_bound,
    find_contradiction,
    find_contradiction_independent,
)
from dpft.audit.plots import lower_bound_plot, roc_plot, trade_off_plot
from dpft.audit.trade_off import TradeOff, mechanism_trade_off, roc_curve
from dpft.data.canaries import Canary
from dpft.privacy.journal import NO_STEPS, read_run_ledger
from dpft.reports.audit_findings import Guesses, GuessesInShort, OneRunAudit, ViewInShort
from dpft.reports.privacy_record import is_another_mechanism, is_contradicted, one_run_rows
from dpft.run_folder import CHECKPOINTS
from dpft.strict_model import joined
from dpft.training.checkpoint import checkpoints, find_resume_point

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class View:
    """Scores of the canaries by one kind of attacker."""

    name: str
    threat_model: str
    scores: Sequence[float]
    """Of each canary, higher where it is more likely to have been trained on."""
    independent: bool = False
    """Whether the score of one canary tells nothing about another's coin."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How sure the findings are, and what they stand beside."""

    epsilon: float | None
    """That of the report; None of a run without privacy."""
    delta: float
    trade_off: TradeOff | None
    """Of the run's plan; None of a run without privacy."""
    confidence: float
    """Of all lower bounds at once, and of their largest."""
    mechanism_confidence: float
    """Of all verdicts at once on whether the mechanism is the plan's."""
    choices: int


def planned_trade_off(folder: Path) -> TradeOff | None:
    """Returns the trade-off curve of what a run took, by its plan and its number of noisy steps.

    None where the plan is gone with the run's checkpoints, with a warning.
    """
    if not checkpoints(folder / CHECKPOINTS):
        logger.warning(
            "%s is gone, and the plan with it: nothing is held against the plan's own curve",
            folder / CHECKPOINTS,
        )
        return None
    plan = find_resume_point(folder).plan()
    streams = (read_run_ledger(folder) or NO_STEPS).streams
    return mechanism_trade_off(plan.event(streams))


def finding(canaries: Sequence[Canary], views: Sequence[View], settings: Settings) -> Finding:
    """Return the finding of the audit, from the scores of one or several kinds of attacker."""
    coins = [canary.included for canary in canaries]
    findings = [_ViewFinding.of(view, coins, settings, len(views)) for view in views]
    lead = max(findings, key=lambda finding: finding.bound.epsilon_lower)
    entries = [finding.entry(settings) for finding in findings]
    short = tuple(
        ViewInShort(
            view=entry.view,
            epsilon_lower=entry.epsilon_lower,
            other_mechanism=entry.other_mechanism,
            assumes_no_mixing=entry.assumes_no_mixing,
        )
        for entry in entries
    )
    strongest = _with_verdict(lead.entry(settings), entries)
    released = joined(GuessesInShort, strongest, views=short)
    return Finding(
        record=joined(OneRunAudit, strongest, views=tuple(entries)),
        rows=[row for entry in entries for row in one_run_rows(entry)],
        notes=_notes(released),
        figures=_figures(findings, coins, settings),
        released=released,
    )


@dataclass(frozen=True, kw_only=True)
class _ViewFinding:
    """The findings of one kind of attacker."""

    view: View
    bound: LowerBound
    gaussian: LowerBound
    against_plan: Contradiction | None

    @classmethod
    def of(
        cls, view: View, coins: Sequence[bool], settings: Settings, views: int
    ) -> "_ViewFinding":
        """Return the findings of a view, at a confidence corrected for the number of views."""
        bound_confidence = 1 - (1 - settings.confidence) / views
        sure = 1 - (1 - settings.mechanism_confidence) / views
        delta, choices = settings.delta, settings.choices
        asked: dict[str, Any] = {"delta": delta, "confidence": bound_confidence, "choices": choices}
        against = None
        if settings.trade_off is not None and view.independent:
            against = find_contradiction_independent(
                view.scores, coins, settings.trade_off, confidence=sure
            )
        elif settings.trade_off is not None:
            against = find_contradiction(
                view.scores, coins, settings.trade_off, confidence=sure, choices=choices
            )
        return cls(
            view=view,
            bound=best_lower_bound(view.scores, coins, **asked),
            gaussian=best_lower_bound(view.scores, coins, **asked, gaussian=True),
            against_plan=against,
        )

    def entry(self, settings: Settings) -> Guesses:
        """Returns it as it is written down."""
        bound, against = self.bound, self.against_plan
        return Guesses(
            view=self.view.name,
            threat_model=self.view.threat_model,
            epsilon_lower=bound.epsilon_lower,
            epsilon=settings.epsilon,
            delta=settings.delta,
            canaries=bound.canaries,
            guesses=bound.guesses,
            correct=bound.correct,
            confidence=settings.confidence,
            choices=bound.choices,
            largest_epsilon_lower=bound.largest_epsilon_lower,
            epsilon_lower_if_gaussian=self.gaussian.epsilon_lower,
            other_mechanism=against is not None and against.contradicted,
            p_value_of_plan=None if against is None else against.p_value,
            mechanism_confidence=settings.mechanism_confidence,
            assumes_no_mixing=against is not None and self.view.independent,
        )


def _with_verdict(lead: Guesses, entries: Sequence[Guesses]) -> Guesses:
    """Returns an entry with whether any view's scores are impossible under the plan.

    Beside it is the p of all views: that of the most telling one, paid for by their number.
    """
    p_values = {
        at: entry.p_value_of_plan
        for at, entry in enumerate(entries)
        if entry.p_value_of_plan is not None
    }
    if not p_values:
        return lead
    telling = min(p_values, key=lambda at: p_values[at])
    return lead.replace(
        other_mechanism=any(entry.other_mechanism for entry in entries),
        p_value_of_plan=min(1.0, len(entries) * float(p_values[telling])),
        assumes_no_mixing=entries[telling].assumes_no_mixing,
    )


def _figures(
    findings: Sequence[_ViewFinding], coins: Sequence[bool], settings: Settings
) -> Mapping[str, Markup]:
    curves = {finding.view.name: roc_curve(finding.view.scores, coins) for finding in findings}
    strongest = max(findings, key=lambda finding: finding.bound.epsilon_lower).view.name
    return {
        "lower_bound": lower_bound_plot(
            {finding.view.name: finding.bound for finding in findings}, epsilon=settings.epsilon
        ),
        "roc": roc_plot(curves, trade_off=settings.trade_off),
        "trade_off": trade_off_plot(curves[strongest], planned=settings.trade_off),
    }


def _notes(released: GuessesInShort) -> list[str]:
    if released.epsilon is None:
        return ["The run was trained without privacy: there is no ε to hold this against."]
    verdicts = [is_contradicted(released), is_another_mechanism(released)]
    return [verdict for verdict in verdicts if verdict] or [
        "A lower bound below ε contradicts nothing, and proves nothing: a stronger attack, or more"
        " canaries, could show more."
    ]
