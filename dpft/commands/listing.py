"""``dpft list``: print the names of tasks, models, methods, recipes or metrics.

The descriptions are the first comments of the YAML files in ``conf/``. Models also have their size,
license and memory, which a table and JSON show. The facts of a model that a run does not need are
in a comment of its YAML, and a test computes them again from its ``architecture``.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from dpft.config.help_text import purpose
from dpft.config.load import config_directory
from dpft.config.output_keys import Output
from dpft.config.section import Section
from dpft.strict_model import AtLeastOne, Positive, StrictModel, as_json

GROUPS = {"tasks": "task", "models": "model", "methods": "method", "recipes": "experiment"}
"""What can be asked for, and the folder of conf/ that has it."""
LISTED = (*GROUPS, "metrics")
CHECKED = "run by make recipes"
"""How each recipe is checked: ``make recipes`` trains, scores and reports it in small."""
HEADER = ("NAME", "PARAMETERS", "LICENSE", "LORA MEMORY", "DESCRIPTION")
UNKNOWN = "-"
_FACTS = re.compile(r"(?m)^# Parameters: ([\d,]+)\.(?: LoRA memory: ([\d.]+) GB\.)?$")
_LICENSE = re.compile(r"(?m)^license: (?!null$)(\S+)$")


CATEGORIES = {
    "tasks": "data sets and data formats: task=NAME",
    "models": "models, with size, license and memory: model=NAME",
    "methods": "ways to fine-tune a model: method=NAME",
    "recipes": "complete runs, many of published papers: experiment=NAME",
    "metrics": "scores: task.metrics=[NAME]",
}
"""What ``dpft list`` can print."""


class ListConfig(Section):
    """``dpft list``, conf/list.yaml."""

    what: Literal["tasks", "models", "methods", "recipes", "metrics"] | None = None
    """tasks, models, methods, recipes or metrics; null: these categories."""
    output: Output = "table"
    """table for people, or json: one object on stdout."""


class ListedModel(StrictModel):
    """A model of conf/model."""

    parameters: AtLeastOne | None = None
    """Number of parameters, with the head of its usual task; absent if the YAML does not state
    the architecture."""
    license: str | None = None
    """The Hub's identifier of the weights' license; absent if there are no weights."""
    lora_memory_gb: Positive | None = None
    """Peak memory of one process in GB (10^9 bytes), as ``dpft plan`` estimates it for method=lora
    of rank 8 and one record at once, of 512 tokens or one image."""
    description: str
    """Description in one line."""


class Listing(StrictModel):
    """The names of the requested kind, each with its description."""

    categories: Mapping[str, str] | None = None
    """The kinds of names, each with a line."""

    tasks: Mapping[str, str] | None = None
    """The tasks, each with a line."""
    models: Mapping[str, ListedModel] | None = None
    """The models, each with its size, license and memory."""
    methods: Mapping[str, str] | None = None
    """The methods, each with a line."""
    recipes: Mapping[str, str] | None = None
    """The recipes, each with a line."""
    metrics: Mapping[str, str] | None = None
    """The metrics, each with a line."""


def expand(overrides: list[str]) -> list[str]:
    """Return a first argument without a key, such as ``tasks``, as ``what=tasks``."""
    return [word if "=" in word else f"what={word}" for word in overrides]


def list_names(config: ListConfig) -> None:
    """Print each name and its description, as a table or as JSON."""
    rows: list[tuple[str, ...]]
    if config.what is None:
        listing, rows = Listing(categories=CATEGORIES), [*CATEGORIES.items()]
    elif config.what == "models":
        listing = Listing(models=models())
        rows = [HEADER, *(_cells(name, model) for name, model in models().items())]
    else:
        lines = listed(config.what)
        listing, rows = Listing.model_validate({config.what: lines}), [*lines.items()]
    if config.output == "json":
        print(json.dumps(as_json(listing), indent=2, ensure_ascii=False))
    else:
        print(*aligned(rows), sep="\n")


def listed(what: str) -> dict[str, str]:
    """Return each name and what it is, in a line; of a recipe also how it is checked."""
    if what == "metrics":
        from dpft.evaluation.metrics.base import METRICS

        return {name: spec.description for name, spec in METRICS.entries().items()}
    checked = f"{CHECKED}  " if what == "recipes" else ""
    return {file.stem: f"{checked}{purpose(file)}" for file in _files(what)}


def models() -> dict[str, ListedModel]:
    """Return the models of conf/model by name."""
    return {file.stem: _model(file) for file in _files("models")}


def _model(file: Path) -> ListedModel:
    text = file.read_text(encoding="utf-8")
    facts, license_line = _FACTS.search(text), _LICENSE.search(text)
    return ListedModel(
        parameters=int(facts[1].replace(",", "")) if facts else None,
        license=license_line[1] if license_line else None,
        lora_memory_gb=float(facts[2]) if facts and facts[2] else None,
        description=purpose(file),
    )


def _cells(name: str, model: ListedModel) -> tuple[str, ...]:
    memory = UNKNOWN if model.lora_memory_gb is None else f"{model.lora_memory_gb:.1f} GB"
    parameters = UNKNOWN if model.parameters is None else short(model.parameters)
    return name, parameters, model.license or UNKNOWN, memory, model.description


def short(number: int) -> str:
    """Return a number of parameters with a unit.

    >>> short(134515008), short(1711376384), short(48_000), short(96)
    ('134.5M', '1.71B', '48K', '96')
    """
    for size, unit, digits in ((10**9, "B", 2), (10**6, "M", 1), (10**3, "K", 0)):
        if number >= size:
            return f"{number / size:.{digits}f}{unit}"
    return str(number)


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows as lines with aligned columns, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _files(what: str) -> list[Path]:
    files = (config_directory() / GROUPS[what]).glob("*.yaml")
    return sorted(files, key=lambda file: file.stem)
