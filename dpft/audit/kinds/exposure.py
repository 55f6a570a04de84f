"""``audit=exposure``: how much of the inserted canaries can be read out of the model.

The secret sharer of Carlini et al. 2019, in the form of Li et al. 2022, Appendix M: of all suffixes
that a canary could have had, how many does the model find likelier than its own?
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dpft.audit.base import AUDITS, Audit, AuditedRun, Finding, kept_canaries
from dpft.data.canaries import EXPOSURE, Canary
from dpft.errors import InputError
from dpft.strict_model import AtLeastOne

if TYPE_CHECKING:
    from dpft.audit.audited_run import Scorer
    from dpft.audit.exposure import Exposed


@AUDITS.register("exposure")
class ExposureAudit(Audit):
    """conf/audit/exposure.yaml."""

    batch_size: AtLeastOne = 256
    """How many beginnings of suffixes are read at once; memory and speed only."""

    def find(self, run: AuditedRun) -> Finding:
        """See ``Audit.find``."""
        from dpft.audit.audited_run import trained, untrained
        from dpft.audit.exposure import finding
        from dpft.commands.tracking import batch_progress
        from dpft.evaluation.evaluate import counter

        canaries = canaries_of(run)
        suffixes = run.config.audit.vocabulary**run.config.audit.suffix_words
        total = 2 * len(canaries) * suffixes
        # How many suffixes there are follows from the configuration: no record is read.
        with batch_progress("audit=exposure", timed=True) as show:
            count = counter("suffixes", total, show)
            after = self._exposed(run, trained(run, self.batch_size), canaries, count)
            before = self._exposed(run, untrained(run, self.batch_size), canaries, count)
        return finding(canaries, after, before, run.privacy)

    def _exposed(
        self,
        run: AuditedRun,
        scorer: "Scorer",
        canaries: Sequence[Canary],
        count: Callable[[int], None],
    ) -> "list[Exposed]":
        from dpft.audit.exposure import exposed, suffix_scores
        from dpft.data.canaries import vocabulary, whole_words
        from dpft.data.encoding import TokenEncoding

        encoding = scorer.encoding
        assert isinstance(encoding, TokenEncoding)  # canaries are words
        words = vocabulary(run.config.audit, whole_words(encoding.tokenizer))
        return [
            exposed(*suffix_scores(scorer, run.config.task, canary, words, on_scored=count))
            for canary in canaries
        ]


def canaries_of(run: AuditedRun) -> list[Canary]:
    """Returns the canaries of the secret sharer that a run had, those left out among them.

    Raises:
        InputError: It had none, or their file is gone, or their suffixes are too few or too many.
    """
    asked = run.config.audit
    if not asked.exposure_canaries:
        raise InputError(
            "audit=exposure needs a run with canaries that are repeated, got one with"
            " audit.exposure_canaries=0; train it anew with audit.exposure_canaries=5, say."
        )
    asked.check_suffixes()
    wanted = asked.exposure_canaries * (1 + len(asked.repetitions))
    return kept_canaries(run, EXPOSURE, wanted, noun="canaries")
