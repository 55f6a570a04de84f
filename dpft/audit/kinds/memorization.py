"""``audit=memorization``: how much of its records a run's model writes on by itself.

Ponomareva et al. 2022, sections 4 and 5.2; ``dpft.audit.memorization_audit`` does it.
"""

from dataclasses import dataclass

from dpft.audit.base import AUDITS, Audit, AuditedRun, Finding
from dpft.errors import InputError


@AUDITS.register("memorization")
@dataclass(frozen=True, kw_only=True)
class Memorization(Audit):
    """conf/audit/memorization.yaml."""

    name: str = "memorization"
    prefix_tokens: int = 512
    """Tokens of a record that the model is given; of a record that has no more, the first half,
    and always the whole prompt of a task that has one."""
    continuation_tokens: int = 114
    """Most tokens that it writes; fewer where a record has no more left."""
    limit: int = 1000
    """Most records of each set, evenly spread over it."""

    def __post_init__(self) -> None:
        for key in ("prefix_tokens", "continuation_tokens", "limit"):
            value = getattr(self, key)
            if value < 1:
                raise InputError(f"audit.{key} must be at least 1, got {value}.")

    def find(self, run: AuditedRun) -> Finding:
        """See ``Audit.find``."""
        from dpft.audit.memorization_audit import audit_memorization

        result = audit_memorization(run.folder, self, device=run.device)
        files = [result.file(run.folder)]
        return Finding(record=result.record(), parts=result.parts(), files=files)
