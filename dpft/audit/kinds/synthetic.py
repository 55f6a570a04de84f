"""``audit=synthetic``: how useful synthetic records are, and which training records they leak.

``dpft.audit.synthetic_audit`` does it.
"""

from dataclasses import dataclass

from dpft.audit.base import AUDITS, Audit, AuditedRun, Finding, check_counts


@AUDITS.register("synthetic")
@dataclass(frozen=True, kw_only=True)
class SyntheticText(Audit):
    """conf/audit/synthetic.yaml."""

    name: str = "synthetic"
    limit: int = 10_000
    """Most records of each kind that are compared, evenly spread over them."""
    label: str | None = None
    """Column of a class, by which a classifier is taught and tested; None: no classifier is."""

    def __post_init__(self) -> None:
        check_counts(self, "limit")

    def find(self, run: AuditedRun) -> Finding:
        """See ``Audit.find``."""
        from dpft.audit.synthetic_audit import audit_synthetic, written_pages

        assert run.synthetic is not None
        result = audit_synthetic(
            run.folder, run.synthetic, limit=self.limit, label=self.label, device=run.device
        )
        files = written_pages(run.folder, result)
        return Finding(record=result.record(), parts=result.parts(), files=files)
