"""The first line that a training run logs, before the libraries that take seconds are imported."""

import logging
from pathlib import Path

from dpft.config.schema import TrainCommand, TrainConfig
from dpft.kinds import LABELS
from dpft.methods.linear_probe import DEFAULT_FOR_LABELS
from dpft.models.source import ModelConfig
from dpft.parallel.silence import is_beside_first
from dpft.privacy.privacy_config import PrivacyConfig
from dpft.reports.run.origin import with_kind

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
