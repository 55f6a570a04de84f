"""``dpft list``: what there is to choose, from the YAML files of ``conf/``.

Each file begins with a line that says what it is and where it is from.
"""

from pathlib import Path
from typing import Literal

from dpft.config.answers import Output
from dpft.config.load import config_directory
from dpft.config.section import Section

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


def listed(what: str) -> dict[str, str]:
    """Returns each name and what it is, in a line; of a recipe also how it is checked."""
    if what == "metrics":
        from dpft.evaluation.metrics.base import METRICS

        return {name: spec.description for name, spec in METRICS.entries().items()}
    checked = f"{CHECKED}  " if what == "recipes" else ""
    files = sorted((config_directory() / GROUPS[what]).glob("*.yaml"))
    return {file.stem: f"{checked}{purpose(file)}" for file in files}


def purpose(file: Path) -> str:
    """Returns what a YAML is for: its first comment, without the command that shows its use."""
    with file.open(encoding="utf-8") as stream:
        comments = [line[1:].strip() for line in stream if line.startswith("#")]
    first = next((line for line in comments if not line.startswith("@package")), "")
    for mark in (" Run: ", ": dpft "):
        first = first.partition(mark)[0]
    return first if first.endswith(".") or not first else f"{first}."
