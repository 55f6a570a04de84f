"""The audit ``audit=one_run``: a lower bound of epsilon from the canaries of a single run.

A secret coin decided whether each canary was trained on. If an attacker guesses more coins
correctly than epsilon allows, the true epsilon is larger (Steinke, Nasr and Jagielski 2023).
``dpft.audit.guessing`` computes three bounds: for any mechanism, for a Gaussian mechanism, and
for the mechanism of the run's own plan. The last bound detects a mechanism that differs from the
planned mechanism, even if the reported epsilon still holds. If there are several kinds of attackers
(`View`), the confidence is corrected for their number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dpft.audit.base import AUDITS, Audit, AuditedRun, Finding
from dpft.data.canaries import COIN, Canary
from dpft.errors import InputError
from dpft.reports.audit_findings import Guesses, GuessesInShort, OneRunAudit, ViewInShort
from dpft.reports.privacy_json import OpenRun
from dpft.reports.privacy_sentences import (
    is_another_mechanism,
    is_contradicted,
    one_run_rows,
)
from dpft.strict_model import AtLeastOne, merge_models

if TYPE_CHECKING:
    from dpft.audit.guessing import LowerBound
    from dpft.audit.trade_off import TradeOff

BLACK_BOX = (
    "black box: the attacker has the released model and the one before fine-tuning, and knows every"
    " canary, but not which were trained on"
)
WHITE_BOX = (
    "white box: the attacker sees the noisy gradient and the weights of every step, and knows every"
    " canary, but not which were trained on"
)
NON_PRIVATE_DELTA = 1e-5
"""The delta for a run without a privacy guarantee."""


@dataclass(frozen=True, kw_only=True)
class View:
    """Scores of the canaries by one kind of attacker."""

    name: str
    threat_model: str
    scores: Sequence[float]
    """Score of each canary; higher if the canary is more likely to have been trained on."""
    independent: bool = False
    """Whether the score of one canary reveals nothing about another's coin."""


@AUDITS.register("one_run")
class OneRunConfig(Audit):
    """Configuration of the audit, conf/audit/one_run.yaml."""

    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Confidence level of the lower bound."""
    mechanism_confidence: Annotated[float, Field(gt=0, lt=1)] = 0.995
    """Confidence level for reporting that the mechanism differs from the plan."""
    choices: AtLeastOne = 10
    """Number of guess counts to try. Each guess count is tested at a confidence of 1 - (1 -
    confidence) / choices."""
    white_box: bool = True
    """Whether to use the scores of steps in addition to the model, if the run has recorded them."""
    batch_size: AtLeastOne = 64
    """Number of canaries that are processed at once; affects only memory and speed."""

    def find(self, run: AuditedRun) -> Finding:
        """See ``Audit.find``."""
        from dpft.audit.audited_run import kept_canaries, planned_trade_off

        wanted = run.config.audit.canaries
        if not wanted:
            raise InputError(
                "audit=one_run needs a run with canaries, but the run has audit.canaries=0. Train"
                " another run with canaries.",
                key="audit.canaries",
                value=0,
                hint="audit.canaries=1000",
            )
        canaries = kept_canaries(run, COIN, wanted, noun="canaries and their coins")
        epsilon: float | None = None
        delta, trade_off = NON_PRIVATE_DELTA, None
        if not isinstance(run.privacy, OpenRun):
            epsilon, delta = float(run.privacy.epsilon), float(run.privacy.delta)
            trade_off = planned_trade_off(run.folder)
        views = self.views(run, canaries)
        return self.finding(canaries, views, epsilon=epsilon, delta=delta, trade_off=trade_off)

    def views(self, run: AuditedRun, canaries: Sequence[Canary]) -> list[View]:
        """Return the scores of the canaries by each kind of attacker."""
        gains = self.black_box_scores(run, canaries)
        views = [View(name="black box", threat_model=BLACK_BOX, scores=gains)]
        if not (self.white_box and run.config.audit.white_box):
            return views
        from dpft.commands.canary_steps import differences, read_white_box, sums
        from dpft.training.checkpoint import find_resume_point

        steps = find_resume_point(run.folder).checkpoint.step
        scores = read_white_box(run.folder, canaries=len(canaries), steps=steps)
        views.append(
            View(name="white box", threat_model=WHITE_BOX, scores=sums(scores), independent=True)
        )
        if steps > 1:
            views.append(
                View(
                    name="white box, steps against each other",
                    threat_model=f"{WHITE_BOX}; it looks for noise that was used twice",
                    scores=differences(scores),
                )
            )
        return views

    def black_box_scores(self, run: AuditedRun, canaries: Sequence[Canary]) -> list[float]:
        """Return how much training increased the log-likelihood of each canary, in nats."""
        from dpft.audit.audited_run import trained, untrained

        records = [canary.record(run.config.task) for canary in canaries]
        after = trained(run, self.batch_size).log_likelihoods(records)
        before = untrained(run, self.batch_size).log_likelihoods(records)
        return [a - b for a, b in zip(after, before, strict=True)]

    def finding(
        self,
        canaries: Sequence[Canary],
        views: Sequence[View],
        *,
        epsilon: float | None,
        delta: float,
        trade_off: "TradeOff | None",
    ) -> Finding:
        """Return the finding of the audit, from the scores of one or several kinds of attackers.

        Args:
            canaries: The run's canaries with their coins.
            views: The scores; the confidence of each view is corrected for the number of views.
            epsilon: The epsilon of the report; None for a non-private run.
            delta: The delta of the bounds.
            trade_off: The curve of the run's plan; None if there is no plan.
        """
        from dpft.audit.plots import lower_bound_plot, roc_plot, trade_off_plot
        from dpft.audit.trade_off import roc_curve

        coins = [canary.included for canary in canaries]
        bounds: dict[str, LowerBound] = {}
        guesses_of_views: list[Guesses] = []
        for view in views:
            bounds[view.name], guesses = self._guesses(
                view, coins, len(views), epsilon=epsilon, delta=delta, trade_off=trade_off
            )
            guesses_of_views.append(guesses)
        strongest = max(guesses_of_views, key=lambda guesses: guesses.epsilon_lower)
        strongest = _with_verdict(strongest, guesses_of_views)
        views_in_short = tuple(
            ViewInShort(
                view=guesses.view,
                epsilon_lower=guesses.epsilon_lower,
                other_mechanism=guesses.other_mechanism,
                assumes_no_mixing=guesses.assumes_no_mixing,
            )
            for guesses in guesses_of_views
        )
        released = merge_models(GuessesInShort, strongest, views=views_in_short)
        curves = {view.name: roc_curve(view.scores, coins) for view in views}
        return Finding(
            record=merge_models(OneRunAudit, strongest, views=tuple(guesses_of_views)),
            rows=[row for guesses in guesses_of_views for row in one_run_rows(guesses)],
            notes=_notes(released),
            figures={
                "lower_bound": lower_bound_plot(bounds, epsilon=epsilon),
                "roc": roc_plot(curves, trade_off=trade_off),
                "trade_off": trade_off_plot(curves[strongest.view], planned=trade_off),
            },
            released=released,
        )

    def _guesses(
        self,
        view: View,
        coins: Sequence[bool],
        num_views: int,
        *,
        epsilon: float | None,
        delta: float,
        trade_off: "TradeOff | None",
    ) -> "tuple[LowerBound, Guesses]":
        """Return the lower bound that one view gives, and all of its results."""
        from dpft.audit.guessing import (
            best_lower_bound,
            find_contradiction,
            find_contradiction_independent,
        )

        confidence = 1 - (1 - self.confidence) / num_views
        bound, if_gaussian = (
            best_lower_bound(
                view.scores,
                coins,
                delta=delta,
                confidence=confidence,
                choices=self.choices,
                gaussian=gaussian,
            )
            for gaussian in (False, True)
        )
        against_plan = None
        confidence = 1 - (1 - self.mechanism_confidence) / num_views
        if trade_off is not None and view.independent:
            against_plan = find_contradiction_independent(
                view.scores, coins, trade_off, confidence=confidence
            )
        elif trade_off is not None:
            against_plan = find_contradiction(
                view.scores, coins, trade_off, confidence=confidence, choices=self.choices
            )
        return bound, Guesses(
            view=view.name,
            threat_model=view.threat_model,
            epsilon_lower=bound.epsilon_lower,
            epsilon=epsilon,
            delta=delta,
            canaries=bound.canaries,
            guesses=bound.guesses,
            correct=bound.correct,
            confidence=self.confidence,
            choices=bound.choices,
            largest_epsilon_lower=bound.largest_epsilon_lower,
            epsilon_lower_if_gaussian=if_gaussian.epsilon_lower,
            other_mechanism=against_plan is not None and against_plan.contradicted,
            p_value_of_plan=None if against_plan is None else against_plan.p_value,
            mechanism_confidence=self.mechanism_confidence,
            assumes_no_mixing=against_plan is not None and view.independent,
        )


def _with_verdict(strongest: Guesses, guesses_of_views: Sequence[Guesses]) -> Guesses:
    """Return the strongest view's guesses, with the combined verdict of all views on the plan.

    The p-value is the smallest p-value of all views, corrected for the number of views.
    """
    p_values = {
        at: guesses.p_value_of_plan
        for at, guesses in enumerate(guesses_of_views)
        if guesses.p_value_of_plan is not None
    }
    if not p_values:
        return strongest
    telling = min(p_values, key=lambda at: p_values[at])
    return strongest.replace(
        other_mechanism=any(guesses.other_mechanism for guesses in guesses_of_views),
        p_value_of_plan=min(1.0, len(guesses_of_views) * float(p_values[telling])),
        assumes_no_mixing=guesses_of_views[telling].assumes_no_mixing,
    )


def _notes(released: GuessesInShort) -> list[str]:
    if released.epsilon is None:
        return ["The run was trained without privacy, so there is no ε to compare the bound with."]
    verdicts = [is_contradicted(released), is_another_mechanism(released)]
    return [verdict for verdict in verdicts if verdict] or [
        "A lower bound below ε is consistent with the guarantee but does not prove it: a stronger"
        " attack, or more canaries, could yield a larger lower bound."
    ]
