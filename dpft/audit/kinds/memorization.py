"""``audit=memorization``: how much of its records a run's model reproduces.

Ponomareva et al. 2022, sections 4 and 5.2; ``dpft.audit.memorization`` does it.
"""

from dpft.audit.base import AUDITS, Audit, AuditedRun, Finding, HiddenPart
from dpft.strict_model import AtLeastOne


@AUDITS.register("memorization")
class Memorization(Audit):
    """conf/audit/memorization.yaml."""

    name: str = "memorization"
    prefix_tokens: AtLeastOne = 512
    """Tokens of a record that the model is given; of a record that has no more, the first half (of
    task.objective=prefix_lm as much as training reads), and always the whole prompt of a task that
    has one. With audit.hidden=spans all of it is given but the spans."""
    continuation_tokens: AtLeastOne = 114
    """Most tokens that are asked of it; fewer where a record has no more left."""
    hidden: HiddenPart | None = None
    """What the model is to write: continuation, what follows the prefix; or spans, 15 % of the
    tokens, three together on average, as T5 hides them, of a corpus learned by span_corruption or
    mlm. null: spans for these two, continuation for all others. Table 3 of Ponomareva et al. 2022
    has continuation for span_corruption, too."""
    limit: AtLeastOne = 1000
    """Most records of each set, evenly spread over it."""

    def find(self, run: AuditedRun) -> Finding:
        """See ``Audit.find``."""
        from dpft.audit.memorization import audit_memorization

        result = audit_memorization(
            run.folder,
            hidden=self.hidden,
            prefix_tokens=self.prefix_tokens,
            continuation_tokens=self.continuation_tokens,
            limit=self.limit,
            device=run.device,
        )
        files = [result.file(run.folder)]
        return Finding(record=result, parts=result.parts(), files=files)
