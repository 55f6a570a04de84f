"""Configurations of runs, and the same with some keys of a section changed."""

from pathlib import Path
from typing import Any

from dpft.config.schema import TrainCommand, TrainConfig
from tests.config.test_conf import loaded
from tests.models import small


def settings(*words: str) -> TrainConfig:
    """Return what ``dpft train`` is configured to by some words."""
    command = loaded("train", list(words))
    assert isinstance(command, TrainCommand)
    return command.settings()


def with_train(config: Any, **train: Any) -> Any:
    return config.replace(train=config.train.replace(**train))


def with_privacy(config: Any, **privacy: Any) -> Any:
    """Return a configuration with other keys of its guarantee."""
    guarantee = config.privacy.guarantee
    assert guarantee is not None
    return config.replace(privacy=guarantee.replace(**privacy))


def without_weights(folder: Path) -> Path:
    """Make the folder of a model that has its config.json alone."""
    base = Path(small.save("gpt2", folder))
    for path in base.iterdir():
        if path.name != "config.json":
            path.unlink()
    return base
