"""``dpft plan``: what ``dpft train`` with the same arguments would do and cost."""

import sys

from dpft.config.schema import POLYMORPHIC, PlanConfig
from dpft.records.form import json_text
from dpft.runs.configuring import checked_overrides as expand
from dpft.runs.configuring import plan_configuration as configuration

CONFIG = PlanConfig
READS_ROWS_ALONE = True

__all__ = ["CONFIG", "POLYMORPHIC", "READS_ROWS_ALONE", "configuration", "expand", "run"]


def run(config: PlanConfig) -> None:
    """Prints the plan, as a table or as one JSON object."""
    from dpft.models.loading import quiet_transformers
    from dpft.reports.plan_table import plan_table
    from dpft.runs.planned_run import describe_run

    quiet_transformers()
    planned = describe_run(config, is_shown=config.output == "table" and sys.stdout.isatty())
    if config.output == "json":
        print(json_text(planned.record))
    else:
        print(plan_table(planned.record, planned.plan.privacy, planned.accounting))
