"""``dpft list``: print the names of tasks, models, methods, recipes or metrics.

The lines are the first comments of the YAML files in ``conf/``.
"""

import json
from collections.abc import Mapping
from typing import Literal

from dpft.config.help_text import purpose
from dpft.config.load import config_directory
from dpft.config.output_keys import Output
from dpft.config.section import Section
from dpft.strict_model import StrictModel, as_json

GROUPS = {"tasks": "task", "models": "model", "methods": "method", "recipes": "experiment"}
"""What can be asked for, and the folder of conf/ that has it."""
LISTED = (*GROUPS, "metrics")
CHECKED = "run by make recipes"
"""How each recipe is checked: ``make recipes`` trains, scores and reports it in small."""


class ListConfig(Section):
    """``dpft list``, conf/list.yaml."""

    what: Literal["tasks", "models", "methods", "recipes", "metrics"]
    """tasks, models, methods, recipes or metrics."""
    output: Output = "table"
    """table for people, or json: one object on stdout."""


class Listing(StrictModel):
    """What was asked for, each name with a line."""

    tasks: Mapping[str, str] | None = None
    """The tasks."""
    models: Mapping[str, str] | None = None
    """The models."""
    methods: Mapping[str, str] | None = None
    """The methods."""
    recipes: Mapping[str, str] | None = None
    """The recipes."""
    metrics: Mapping[str, str] | None = None
    """The metrics."""


def expand(overrides: list[str]) -> list[str]:
    """Return a first argument without a key, such as ``tasks``, as ``what=tasks``."""
    return [word if "=" in word else f"what={word}" for word in overrides]


def list_names(config: ListConfig) -> None:
    """Print each name and its line, as a table or as JSON."""
    lines = listed(config.what)
    if config.output == "json":
        listing = as_json(Listing(**{config.what: lines}))
        print(json.dumps(listing, indent=2, ensure_ascii=False))
        return
    width = max(map(len, lines))
    for name, line in lines.items():
        print(f"{name:<{width}}  {line}")


def listed(what: str) -> dict[str, str]:
    """Returns each name and what it is, in a line; of a recipe also how it is checked."""
    if what == "metrics":
        from dpft.evaluation.metrics.base import METRICS

        return {name: spec.description for name, spec in METRICS.entries().items()}
    checked = f"{CHECKED}  " if what == "recipes" else ""
    files = sorted((config_directory() / GROUPS[what]).glob("*.yaml"))
    return {file.stem: f"{checked}{purpose(file)}" for file in files}
