"""``dpft plan``: what ``dpft train`` with the same arguments would do and cost."""

import json

from omegaconf import DictConfig

from dpft.cli.overrides import checked_overrides, job_overrides, without_recipes_promise
from dpft.config.load import load
from dpft.config.schema import POLYMORPHIC, PlanConfig
from dpft.models.loading import quiet_transformers
from dpft.reports.accounting.plan_table import plan_table
from dpft.runs.planned_run import describe_run

CONFIG = PlanConfig
expand = checked_overrides

__all__ = ["CONFIG", "POLYMORPHIC", "configuration", "expand", "run"]


def configuration(composed: DictConfig) -> PlanConfig:
    """Returns what Hydra composed.

    Raises:
        InputError: It is incomplete or wrong.
    """
    settled = without_recipes_promise(composed, job_overrides())
    return load(settled, PlanConfig, polymorphic=POLYMORPHIC)


def run(config: PlanConfig) -> None:
    """Prints the plan, as a table or as one JSON object."""
    quiet_transformers()
    planned = describe_run(config)
    if config.output == "json":
        print(json.dumps(planned.record, indent=2, sort_keys=True))
    else:
        print(plan_table(planned.record, planned.plan.privacy, planned.accounting))
