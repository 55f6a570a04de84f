"""``audit=membership``: whether an attack tells the run's training records from others.

Attacks by the loss (Yeom et al. 2018), by the loss beside the model's before fine-tuning, and with
reference runs RMIA (Zarifzadeh et al. 2024) and LiRA (Carlini et al. 2022).
"""

from dpft.audit.base import AUDITS, Audit, AuditedRun, Finding
from dpft.errors import InputError
from dpft.strict_model import AtLeastOne


@AUDITS.register("membership")
class MembershipAudit(Audit):
    """conf/audit/membership.yaml."""

    reference_runs: tuple[str, ...] = ()
    """Folders of runs of the same task and model, trained on other records of the same kind."""
    limit: AtLeastOne = 1000
    """Most records of those trained on, and of others, evenly spread over them."""
    batch_size: AtLeastOne = 32
    """How many of the longest records are read at once; memory and speed only."""

    def _check_fields(self) -> None:
        if len(set(self.reference_runs)) < len(self.reference_runs):
            raise InputError("audit.reference_runs must name different runs.")

    def find(self, run: AuditedRun) -> Finding:
        """See ``Audit.find``."""
        from dpft.audit.membership import audit_membership

        return audit_membership(
            run, references=self.reference_runs, limit=self.limit, batch_size=self.batch_size
        )
