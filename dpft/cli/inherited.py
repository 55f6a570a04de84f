"""What a command takes from the run that ``run=`` names, unless an override says otherwise.

Its subcommand's ``expand`` chooses the run's task before Hydra composes, so that every key of that
task can be set; the values come from the run's config.yaml afterwards.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

from hydra.core.hydra_config import HydraConfig

from dpft.cli.trained import saved_configuration
from dpft.config.keys import plain
from dpft.config.load import from_values
from dpft.config.schema import TASK

Config = TypeVar("Config")


def given_overrides(overrides: Sequence[str]) -> dict[str, str]:
    """Returns the keys that the overrides set, and the values as they were written."""
    return dict(override.lstrip("+~").partition("=")[::2] for override in overrides)


def with_task_of_run(overrides: list[str]) -> list[str]:
    """Returns the overrides, with the task of the run that ``run=`` names chosen first.

    Raises:
        InputError: There is no such run.
    """
    folder = given_overrides(overrides).get("run", "null")
    if folder in ("", "null"):
        return overrides
    return [f"task={saved_configuration(folder)['task']['name']}", *overrides]


def inherit(config: Config, folder: str, sections: Sequence[str]) -> Config:
    """Returns a configuration with the run's own sections, changed where an override says so.

    Args:
        config: As Hydra composed it; a dataclass with a field ``run``.
        folder: The run's folder.
        sections: Those of its sections that the run decides.
    """
    saved = saved_configuration(folder)
    taken = {name: saved[name] for name in sections}
    given = plain(config)
    for override in HydraConfig.get().overrides.task[1:]:
        path = override.partition("=")[0].lstrip("+~").split(".")
        if path[0] in taken:
            copy_key(path, given, taken)
    merged = from_values(given | taken, type(config), polymorphic=TASK)
    return dataclasses.replace(merged, run=folder)  # type: ignore[type-var]


def copy_key(path: list[str], source: dict[str, Any], target: dict[str, Any]) -> None:
    """Copies the value at a key path from one configuration to another."""
    for name in path[:-1]:
        source, target = source[name], target[name]
    target[path[-1]] = source[path[-1]]
