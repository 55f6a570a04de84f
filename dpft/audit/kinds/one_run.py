"""``audit=one_run``: a lower bound of epsilon by the canaries of one run.

Each canary was trained on if its secret coin said so. Whoever guesses more coins rightly than
epsilon allows has shown that epsilon is larger (Steinke, Nasr and Jagielski 2023).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from dpft.audit.base import (
    AUDITS,
    Audit,
    AuditedRun,
    Finding,
    kept_canaries,
)
from dpft.data.canaries import COIN, Canary
from dpft.errors import InputError
from dpft.reports.promises import OpenRun, RunPrivacy
from dpft.strict_model import AtLeastOne

if TYPE_CHECKING:
    from dpft.audit.one_run import View

BLACK_BOX = (
    "black box: the attacker has the released model and the one before fine-tuning, and knows every"
    " canary, but not which were trained on"
)
WHITE_BOX = (
    "white box: the attacker sees the noisy gradient and the weights of every step, and knows every"
    " canary, but not which were trained on"
)
NON_PRIVATE_DELTA = 1e-5
"""Of a run that promises none."""


@AUDITS.register("one_run")
class OneRunAudit(Audit):
    """conf/audit/one_run.yaml."""

    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """With which the lower bound holds."""
    mechanism_confidence: Annotated[float, Field(gt=0, lt=1)] = 0.995
    """With which a mechanism that is called another than the plan's is one."""
    choices: AtLeastOne = 10
    """Numbers of guesses that are tried; each at a confidence of 1 - (1 - confidence) / choices."""
    white_box: bool = True
    """Look at the scores of steps, too, where the run kept them; False: at the model alone."""
    batch_size: AtLeastOne = 64
    """How many canaries are read at once; memory and speed only."""

    def find(self, run: AuditedRun) -> Finding:
        """See ``Audit.find``."""
        from dpft.audit.one_run import Settings, finding, planned_trade_off

        canaries = canaries_of(run)
        epsilon, delta = promise(run.privacy)
        settings = Settings(
            epsilon=epsilon,
            delta=delta,
            trade_off=None if epsilon is None else planned_trade_off(run.folder),
            confidence=self.confidence,
            mechanism_confidence=self.mechanism_confidence,
            choices=self.choices,
        )
        return finding(canaries, self.views(run, canaries), settings)

    def views(self, run: AuditedRun, canaries: Sequence[Canary]) -> "list[View]":
        """Return the scores of the canaries by each kind of attacker."""
        from dpft.audit.one_run import View

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
        """Returns by how much training raised the log-likelihood of each canary."""
        from dpft.audit.audited_run import trained, untrained

        records = [canary.record(run.config.task) for canary in canaries]
        after = trained(run, self.batch_size).log_likelihoods(records)
        before = untrained(run, self.batch_size).log_likelihoods(records)
        return [a - b for a, b in zip(after, before, strict=True)]


def canaries_of(run: AuditedRun) -> list[Canary]:
    """Returns the canaries of a run that had coins.

    Raises:
        InputError: It was trained without, or the file with their coins is gone.
    """
    if not run.config.audit.canaries:
        raise InputError(
            "audit=one_run needs a run with canaries, got one with audit.canaries=0; train it anew"
            " with audit.canaries=1000, for instance."
        )
    return kept_canaries(run, COIN, run.config.audit.canaries, noun="canaries and their coins")


def promise(privacy: RunPrivacy) -> tuple[float | None, float]:
    """Returns the epsilon and delta that a run's report promises; no epsilon of a run without."""
    if isinstance(privacy, OpenRun):
        return None, NON_PRIVATE_DELTA
    return float(privacy.epsilon), float(privacy.delta)
