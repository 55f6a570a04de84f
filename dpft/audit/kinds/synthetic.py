"""``audit=synthetic``: usefulness of synthetic records, and what they reveal of training records.

This module reads the run's records; ``dpft.synthesis.audit`` compares them.
"""

from dpft.audit.base import AUDITS, Audit, AuditedRun, Finding
from dpft.strict_model import AtLeastOne


@AUDITS.register("synthetic")
class SyntheticText(Audit):
    """conf/audit/synthetic.yaml."""

    name: str = "synthetic"
    limit: AtLeastOne = 10_000
    """Most records of each kind that are compared, evenly spread over them."""

    def find(self, run: AuditedRun) -> Finding:
        """See ``Audit.find``."""
        from dpft.audit.audited_run import Unseen, check_writes_texts, records_and_unseen
        from dpft.commands.task_model import trained_model_of_run
        from dpft.synthesis.audit import audit_parts, audit_synthetic

        task = check_writes_texts(run.config)
        encoding = trained_model_of_run(run.folder, run.config).encoding(task, max_new_tokens=None)
        records, unseen = records_and_unseen(run.folder, run.config, encoding)
        assert run.synthetic is not None
        record, files = audit_synthetic(
            run.folder,
            task,
            run.synthetic,
            training=records if isinstance(records, str) else records.training,
            others=unseen.records if isinstance(unseen, Unseen) else unseen,
            published=isinstance(unseen, Unseen) and unseen.public,
            limit=self.limit,
        )
        return Finding(record=record, parts=audit_parts(record), files=files)
