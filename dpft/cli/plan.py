"""``dpft plan``: what ``dpft train`` with the same arguments would do and cost.

Needs no more of a model than its config.json; reads local data only to count it where no public
number is configured.
"""

import dataclasses
import json
from typing import Any

from dpft.cli.assembly import (
    RunPlan,
    check_lengths,
    checked_overrides,
    plan_run,
    quiet_transformers,
    warn_of_delta,
)
from dpft.config.schema import POLYMORPHIC, PlanConfig
from dpft.data.sources import load_examples
from dpft.methods.base import count_parameters
from dpft.models.loading import load_config, load_model, meta_model
from dpft.privacy.accounting.mechanism import SampledGaussian
from dpft.privacy.accounting.summary import AccountingReport, account
from dpft.privacy.settings import DifferentialPrivacy
from dpft.reports.plan import plan_table
from dpft.reports.privacy import non_private_record, parameter_record, plan_record
from dpft.training.measure import Measurement, measure_step

CONFIG = PlanConfig
expand = checked_overrides

__all__ = ["CONFIG", "POLYMORPHIC", "expand", "run"]


def run(config: PlanConfig) -> None:
    """Prints the plan, as a table or as one JSON object."""
    quiet_transformers()
    config = allow_large_delta(config)
    check_lengths(config, load_config(config.model))
    plan = plan_run(config, lambda: len(load_examples(config.task, "train")))
    accounting = account_for_plan(config, plan)
    record = describe(config, plan, accounting)
    if config.plan.measure:
        record["measured"] = dataclasses.asdict(measure(config, plan))
    if plan.privacy is not None:
        warn_of_delta(plan.privacy)
    if config.output == "json":
        print(json.dumps(record, indent=2, sort_keys=True))
    else:
        print(plan_table(record, plan.privacy, accounting))


def allow_large_delta(config: PlanConfig) -> PlanConfig:
    """Returns the configuration with a large delta allowed: planning only warns of it."""
    if not isinstance(config.privacy, DifferentialPrivacy):
        return config
    privacy = dataclasses.replace(config.privacy, allow_large_delta=True)
    return dataclasses.replace(config, privacy=privacy)


def account_for_plan(config: PlanConfig, plan: RunPlan) -> AccountingReport | None:
    """Returns what the planned steps cost; None for a non-private run."""
    if plan.privacy is None or not isinstance(config.privacy, DifferentialPrivacy):
        return None
    mechanism = SampledGaussian(
        noise_multiplier=plan.privacy.noise_multiplier,
        sample_rate=plan.privacy.sample_rate,
        steps=plan.privacy.steps,
        delta=plan.privacy.delta,
    )
    return account(mechanism, accountant=config.privacy.accountant)


def describe(
    config: PlanConfig, plan: RunPlan, accounting: AccountingReport | None
) -> dict[str, Any]:
    """Returns the plan under the keys of privacy.json (DESIGN section 9)."""
    counts = count_parameters(config.method.prepare(meta_model(config.model)))
    if plan.privacy is not None and accounting is not None:
        record = plan_record(plan.privacy, accounting)
    else:
        record = non_private_record(
            num_examples=plan.size.num_examples,
            expected_batch_size=config.train.expected_batch_size,
            steps=plan.steps,
        )
    return record | {"num_examples_source": plan.size.source, **parameter_record(counts)}


def measure(config: PlanConfig, plan: RunPlan) -> Measurement:
    """Times one micro-batch of a model with random weights, so that none are fetched."""
    device = config.train.prepare()
    fresh = dataclasses.replace(config.model, init="random")
    model = config.method.prepare(load_model(fresh, seed=config.train.seed))
    model.to(device)  # type: ignore[arg-type]
    privacy = config.privacy
    private = privacy if isinstance(privacy, DifferentialPrivacy) else None
    return measure_step(
        model,
        vocab_size=model.config.get_text_config().vocab_size,
        max_length=config.task.max_length,
        micro_batch_size=config.train.micro_batch_size,
        expected_batch_size=config.train.expected_batch_size,
        steps=plan.steps,
        options=private.clipping_options(config.train.backward_scale) if private else None,
        precision=config.train.precision,
    )
