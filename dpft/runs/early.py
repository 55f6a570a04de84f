"""The first second of a training run, before torch is imported: its first line, its accountants.

The line says what is about to be trained. Where all numbers of the plan stand in the configuration,
the accountants begin with them, in processes of their own, while libraries load and records are
read.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpft.config.schema import TrainCommand, TrainConfig
from dpft.errors import InputError
from dpft.kinds import LABELS
from dpft.methods.linear_probe import DEFAULT_FOR_LABELS
from dpft.models.source import ModelConfig
from dpft.parallel.silence import is_beside_first
from dpft.privacy.accounting.calibration import Calibrate, calibrate_noise_multiplier
from dpft.privacy.accounting.early import EarlyCalibration, Target
from dpft.privacy.mechanisms.base import Numbers
from dpft.privacy.plan import default_delta
from dpft.privacy.privacy_config import PrivacyConfig
from dpft.reports.run.origin import with_kind
from dpft.runs.run_plan import method_phases, public_size, with_own_defaults

logger = logging.getLogger(__name__)


def announce(command: TrainCommand) -> None:
    """Logs what is about to be trained, from the configuration alone; on the first process."""
    if is_beside_first():
        return
    if command.resume is not None:
        logger.info("going on with %s: %s", command.resume, what_is_trained(command))
    else:
        logger.info("training %s", what_is_trained(command))
        say_default_method(command)


def say_default_method(config: TrainConfig) -> None:
    """Logs why the head alone trains, where that is the default, and the key that changes it."""
    is_of_labels = config.task.own_defaults and config.task.answers == LABELS
    if is_of_labels and config.method.name == "linear_probe":
        logger.info(DEFAULT_FOR_LABELS)


def what_is_trained(command: TrainCommand) -> str:
    """Returns task, model, method and promise of a run, in words that follow "training".

    That is "model=gpt2 on task=e2e by method=full, under eps=3 for each example", say; a model in
    a folder is called by the folder's last name and its config.json's type: "model.path=…/NAME
    (bert)".
    """
    start = "" if command.model.init == "pretrained" else " from random weights"
    return (
        f"{_model(command.model)}{start} on task={command.task.name}"
        f" by method={command.method.name}, {_promise(command.privacy)}"
    )


def _model(model: ModelConfig) -> str:
    if model.path is None or model.folder is None:
        return f"model={model.name}"
    path = Path(model.path)
    name = path.name if len(path.parts) == 1 else f"…/{path.name}"
    return with_kind(f"model.path={name}", model.folder)


def _promise(privacy: PrivacyConfig) -> str:
    guarantee = privacy.guarantee
    if guarantee is None:
        clips = privacy.clips
        if clips is None:
            return "without privacy"
        return f"without privacy: each example clipped at {clips.clipping_norm:g}, no noise"
    unit = f"each value of {guarantee.unit}" if guarantee.has_units else "each example"
    if guarantee.total_eps is not None:
        return f"under eps={guarantee.total_eps:g} with its tokenizer for {unit}"
    if guarantee.eps is None:
        return f"with noise_multiplier={guarantee.noise_multiplier:g} for {unit}"
    delta = "" if guarantee.delta is None else f", delta={guarantee.delta:g}"
    return f"under eps={guarantee.eps:g}{delta} for {unit}"


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
    if not config.mechanism.is_settled:
        return None
    try:
        found = public_size(config, _not_counted)
        config, size = with_own_defaults(config, found), found.num_examples
        batch = config.train.batch_size(size)
        phases = method_phases(config, config.train.planned_steps(size), size)
        steps = sum(phase.steps for phase in phases)
        numbers = Numbers(num_examples=size, expected_batch_size=batch, steps=steps, delta=0.5)
        mechanism = config.mechanism.choose(numbers)
    except (NotCounted, InputError):
        return None
    return Target(
        eps=guarantee.eps,
        delta=(
            default_delta(size, config.task.default_delta)
            if guarantee.delta is None
            else guarantee.delta
        ),
        sample_rate=mechanism.rate(batch / size),
        steps=mechanism.compositions((steps,)),
        accountant=guarantee.accountant,
    )


def _not_counted() -> int:
    raise NotCounted
