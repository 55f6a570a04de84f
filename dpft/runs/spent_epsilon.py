"""What a run has spent as it goes on, and afterwards over its steps: the plan's curve of epsilon.

The curve follows from the plan alone, so that a run that goes on has the same one.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from dpft.config.schema import TrainConfig
from dpft.privacy.accounting.background import CurveInBackground
from dpft.privacy.accounting.curve import EpsilonCurve, EpsilonSoFar
from dpft.privacy.plan import PrivacyPlan
from dpft.runs.run_plan import RunPlan

logger = logging.getLogger(__name__)


@contextmanager
def curve_beside(
    config: TrainConfig, plan: RunPlan, *, wanted: bool = True
) -> Iterator[CurveInBackground | None]:
    """Gives the curve of a private run, which is computed while the block runs.

    Args:
        config: Of the run.
        plan: Of the run.
        wanted: False for a trial of a search, whose own steps are not what was spent.
    """
    if plan.privacy is None or not wanted:
        yield None
        return
    leader = leading_accountant(config, plan.privacy)
    event, mechanism, steps = plan.privacy.event(), plan.privacy.mechanism, plan.privacy.steps
    with CurveInBackground(
        event, leader, steps_within=lambda count: min(steps, mechanism.steps_within(count))
    ) as background:
        yield background


def epsilon_so_far(
    config: TrainConfig, plan: PrivacyPlan, background: CurveInBackground | None
) -> EpsilonSoFar:
    """Returns what bar, lines and trackers say of epsilon: the curve's, once it is there."""
    return EpsilonSoFar(
        plan,
        lambda: None if background is None else background.curve,
        by_rdp=leading_accountant(config, plan) == "rdp",
    )


def finished_curve(background: CurveInBackground | None) -> EpsilonCurve | None:
    """Returns the whole curve, and says where it is not by the accountant that it should be by."""
    if background is None:
        return None
    curve = background.wait()
    others = ", ".join(sorted(set(curve.accountants) - {background.accountant}))
    if others:
        why = "".join(
            f"; {failure.accountant}: {failure.reason}" for failure in background.failures
        )
        logger.warning("the curve of epsilon over the steps has bounds by %s%s", others, why)
    return curve


def leading_accountant(config: TrainConfig, plan: PrivacyPlan) -> str:
    """Returns whose bound a run reports: that of its calibration, else the configured one."""
    if plan.calibration is not None:
        return plan.calibration.accountant
    assert config.privacy.guarantee is not None
    return config.privacy.guarantee.accountant
