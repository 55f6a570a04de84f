"""``dpft list``: names of tasks, models, methods, recipes or metrics, with a line for each."""

import json
from collections.abc import Mapping

from dpft.config.listing import ListConfig, listed
from dpft.strict_model import StrictModel, as_json


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
