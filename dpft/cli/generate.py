"""``dpft generate``: writes synthetic records with a run's model, and what they cost."""

from dataclasses import replace
from pathlib import Path

from dpft.cli.overrides import inherit, overridden_keys, with_task_of_run
from dpft.config.schema import TASK, GenerateConfig, TrainConfig
from dpft.models.loading import quiet_transformers
from dpft.runs.crashes import crash_kept
from dpft.runs.generation import generate
from dpft.runs.trained_model import saved_run

CONFIG = GenerateConfig
POLYMORPHIC = TASK
expand = with_task_of_run

__all__ = ["CONFIG", "POLYMORPHIC", "expand", "run"]


def run(config: GenerateConfig) -> None:
    """Writes the records, and beside them the statement of what they cost."""
    quiet_transformers()
    folder, saved = Path(config.run), saved_run(config.run)
    with crash_kept(folder):
        generate(settled(inherit(config, config.run, ("task",)), saved), saved, folder)


def settled(config: GenerateConfig, saved: TrainConfig) -> GenerateConfig:
    """Returns the configuration with texts as long as the run's, unless an override says so."""
    if "decode.max_new_tokens" in overridden_keys():
        return config
    longest = saved.decode.max_new_tokens
    return replace(config, decode=replace(config.decode, max_new_tokens=longest))
