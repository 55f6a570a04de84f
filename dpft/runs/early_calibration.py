"""The accountants at work before torch is imported and before the records are read.

The noise of most runs follows from public numbers that the configuration has: a published size, a
batch, a number of steps. So its calibration, seconds in processes of the accountants' own, begins
with the command, and the plan takes its answer when it comes to it. Where a number is still to be
counted, the accountants at least import their libraries meanwhile.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from dpft.config.schema import TrainConfig
from dpft.errors import InputError
from dpft.privacy.accounting.calibration import Calibrate, calibrate_noise_multiplier
from dpft.privacy.accounting.early import EarlyCalibration, Target
from dpft.privacy.plan import default_delta
from dpft.runs.run_plan import method_phases, public_size, with_own_defaults


class NotCounted(Exception):
    """A size that counts as public is that of records which nobody has read yet."""


@contextmanager
def early_calibration(config: TrainConfig) -> Iterator[Calibrate]:
    """Gives what a plan is calibrated by, begun now where a run that begins has a target epsilon.

    Args:
        config: Of a run that begins.
    """
    guarantee = config.privacy.guarantee
    if guarantee is None or guarantee.eps is None:
        yield calibrate_noise_multiplier
        return
    with EarlyCalibration(target_of(config)) as calibration:
        yield calibration


def target_of(config: TrainConfig) -> Target | None:
    """Returns what the plan of a run will be calibrated for, or None where that is not known yet.

    What is wrong with the numbers is said where the plan is made.
    """
    guarantee = config.privacy.guarantee
    if guarantee is None or guarantee.eps is None or config.train.transfer_sample_rate_from:
        return None
    try:
        found = public_size(config, _not_counted)
        config, size = with_own_defaults(config, found), found.num_examples
        batch = config.train.batch_size(size)
        phases = method_phases(config, config.train.planned_steps(size), size)
    except (NotCounted, InputError):
        return None
    return Target(
        eps=guarantee.eps,
        delta=(
            default_delta(size, config.task.default_delta)
            if guarantee.delta is None
            else guarantee.delta
        ),
        sample_rate=batch / size,
        steps=sum(phase.steps for phase in phases),
        accountant=guarantee.accountant,
    )


def _not_counted() -> int:
    raise NotCounted
