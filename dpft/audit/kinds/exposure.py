"""``audit=exposure``: how much of the inserted canaries can be read out of the model.

The secret sharer of Carlini et al. 2019, in the form of Li et al. 2022, Appendix M: of all suffixes
that a canary could have had, how many does the model find likelier than its own?
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpft.audit.base import AUDITS, Audit, AuditedRun, Finding, expect
from dpft.data.canaries import EXPOSURE, Canary
from dpft.errors import InputError
from dpft.run_folder import CANARIES
from dpft.runs.canary_file import read_canaries

if TYPE_CHECKING:
    from dpft.audit.exposure_findings import Exposed
    from dpft.audit.likelihoods import Scorer

MOST_SUFFIXES = 10**7


@AUDITS.register("exposure")
@dataclass(frozen=True, kw_only=True)
class ExposureAudit(Audit):
    """conf/audit/exposure.yaml."""

    batch_size: int = 256
    """How many beginnings of suffixes are read at once; memory and speed only."""

    def __post_init__(self) -> None:
        expect(self.batch_size >= 1, "batch_size", "be at least 1", self.batch_size)

    def find(self, run: AuditedRun) -> Finding:
        """See ``Audit.find``."""
        from dpft.audit.exposure_findings import finding
        from dpft.audit.likelihoods import trained, untrained

        canaries = canaries_of(run)
        with trained(run, self.batch_size) as scorer:
            after = self._exposed(run, scorer, canaries)
        with untrained(run, self.batch_size) as scorer:
            before = self._exposed(run, scorer, canaries)
        return finding(canaries, after, before, run.privacy)

    def _exposed(
        self, run: AuditedRun, scorer: "Scorer", canaries: Sequence[Canary]
    ) -> "list[Exposed]":
        from dpft.audit.exposure_findings import exposed
        from dpft.audit.suffix_scores import suffix_scores
        from dpft.data.canaries import vocabulary, whole_words
        from dpft.data.encoding import TokenEncoding

        encoding = scorer.encoding
        assert isinstance(encoding, TokenEncoding)  # canaries are words
        words = vocabulary(run.config.audit, whole_words(encoding.tokenizer))
        return [
            exposed(suffix_scores(scorer, run.config.task, canary, words)) for canary in canaries
        ]


def canaries_of(run: AuditedRun) -> list[Canary]:
    """Returns the canaries of the secret sharer that a run had, those left out among them.

    Raises:
        InputError: It had none, or the file with them is gone, or the suffixes are too many.
    """
    asked = run.config.audit
    if not asked.exposure_canaries:
        raise InputError(
            "audit=exposure needs a run with canaries that are repeated, got one with"
            " audit.exposure_canaries=0; train it anew with audit.exposure_canaries=5, say."
        )
    suffixes = asked.vocabulary**asked.suffix_words
    if suffixes > MOST_SUFFIXES:
        raise InputError(
            f"audit=exposure ranks every suffix, of which this run's vocabulary has {suffixes:.1e},"
            f" more than {MOST_SUFFIXES:.0e}; train it anew with a lower audit.vocabulary or"
            " audit.suffix_words."
        )
    canaries = [canary for canary in read_canaries(run.folder) if canary.kind == EXPOSURE]
    wanted = asked.exposure_canaries * (1 + len(asked.repetitions))
    if len(canaries) != wanted:
        raise InputError(
            f"{run.folder / CANARIES} must hold the run's {wanted} canaries, got {len(canaries)};"
            " without them audit=membership and audit=memorization can still be done."
        )
    return canaries
