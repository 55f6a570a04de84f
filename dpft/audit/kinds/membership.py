"""``audit=membership``: whether an attack tells the run's training records from others.

Attacks by the loss (Yeom et al. 2018), by the loss beside the model's before fine-tuning, and with
reference runs RMIA (Zarifzadeh et al. 2024) and LiRA (Carlini et al. 2022).
"""

from dataclasses import dataclass

from dpft.audit.base import AUDITS, Audit, AuditedRun, Finding, check_counts, check_value


@AUDITS.register("membership")
@dataclass(frozen=True, kw_only=True)
class MembershipAudit(Audit):
    """conf/audit/membership.yaml."""

    reference_runs: tuple[str, ...] = ()
    """Folders of runs of the same task and model, trained on other records of the same kind."""
    limit: int = 1000
    """Most records of those trained on, and of others, evenly spread over them."""
    batch_size: int = 32
    """How many of the longest records are read at once; memory and speed only."""

    def __post_init__(self) -> None:
        check_counts(self, "limit", "batch_size")
        runs = self.reference_runs
        check_value(
            len(set(runs)) == len(runs), "reference_runs", "name different runs", list(runs)
        )

    def find(self, run: AuditedRun) -> Finding:
        """See ``Audit.find``."""
        from dpft.audit.membership import audit_membership

        return audit_membership(
            run, references=self.reference_runs, limit=self.limit, batch_size=self.batch_size
        )
