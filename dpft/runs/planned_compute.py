"""What ``dpft plan compute=TOKENS`` adds to a plan: the budget divided into steps and batches."""

import logging
import math
from pathlib import Path

from dpft.config.schema import PlanConfig
from dpft.privacy.accounting.accountants import Accountants
from dpft.privacy.accounting.compute import (
    TOKENS_PER_PARAMETER,
    Budget,
    Division,
    advised,
    divisions,
    ratio_curve,
)
from dpft.privacy.plan import PrivacyPlan
from dpft.records.plans import PlannedCompute, PlannedDivision
from dpft.reports.accounting.plots import plot_noise_batch_ratio

logger = logging.getLogger(__name__)


def plan_compute(
    config: PlanConfig, plan: PrivacyPlan, *, tokens_per_example: int, parameters: int
) -> PlannedCompute:
    """Returns how the budget of ``compute`` is best divided; drawn where ``to`` says so.

    Args:
        config: Of the plan; it has a budget of compute, and of privacy.
        plan: The run's own, for its public numbers; its steps and batch are not read.
        tokens_per_example: How long an example is taken to be.
        parameters: Of the whole model.

    Raises:
        InputError: The budget is too small.
    """
    guarantee = config.privacy.guarantee
    assert config.compute is not None and guarantee is not None and guarantee.eps is not None
    budget = Budget(
        tokens=config.compute,
        tokens_per_example=tokens_per_example,
        num_examples=plan.num_examples,
        eps=guarantee.eps,
        delta=plan.delta,
        accountant=guarantee.accountant,
    )
    with Accountants() as accountants:
        found = divisions(budget, accountants)
        best = advised(found)
        if config.to is not None:
            steps = sorted({max(1, best.steps // 4), best.steps, best.steps * 4})
            curves = {count: ratio_curve(budget, count, accountants) for count in steps}
            plot_noise_batch_ratio(curves, found, best, budget, Path(config.to))
            logger.info("plot: %s", config.to)
    flops = 6 * parameters * config.compute
    return PlannedCompute(
        tokens=config.compute,
        tokens_per_example=tokens_per_example,
        model_parameters=parameters,
        flops=flops,
        parameters_without_privacy=round(math.sqrt(flops / (6 * TOKENS_PER_PARAMETER))),
        divisions=tuple(_record(each) for each in found),
        advised=_record(best),
    )


def _record(division: Division) -> PlannedDivision:
    return PlannedDivision(
        steps=division.steps,
        expected_batch_size=division.expected_batch_size,
        noise_multiplier=division.noise_multiplier,
        noise_batch_ratio=division.noise_batch_ratio,
        strength=division.strength,
        is_measured=division.is_measured,
    )
