"""The first line that a training run logs, before the libraries that take seconds are imported."""

import logging

from dpft.config.schema import TrainCommand
from dpft.parallel.silence import is_beside_first
from dpft.privacy.privacy_config import PrivacyConfig

logger = logging.getLogger(__name__)


def announce(command: TrainCommand) -> None:
    """Logs what is about to be trained, from the configuration alone; on the first process."""
    if is_beside_first():
        return
    if command.resume is not None:
        logger.info("going on with %s: %s", command.resume, what_is_trained(command))
    else:
        logger.info("training %s", what_is_trained(command))


def what_is_trained(command: TrainCommand) -> str:
    """Returns task, model, method and promise of a run, in words that follow "training".

    That is "model=gpt2 on task=e2e by method=full, under eps=3 for each example", say.
    """
    start = "" if command.model.init == "pretrained" else " from random weights"
    return (
        f"model={command.model.name}{start} on task={command.task.name}"
        f" by method={command.method.name}, {_promise(command.privacy)}"
    )


def _promise(privacy: PrivacyConfig) -> str:
    guarantee = privacy.guarantee
    if guarantee is None:
        return "without privacy"
    unit = f"each value of {guarantee.unit}" if guarantee.has_units else "each example"
    if guarantee.total_eps is not None:
        return f"under eps={guarantee.total_eps:g} with its tokenizer for {unit}"
    if guarantee.eps is None:
        return f"with noise_multiplier={guarantee.noise_multiplier:g} for {unit}"
    delta = "" if guarantee.delta is None else f", delta={guarantee.delta:g}"
    return f"under eps={guarantee.eps:g}{delta} for {unit}"
