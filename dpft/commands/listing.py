"""Lists of the names of tasks, models, methods, recipes or metrics (``dpft list``).

The descriptions are the first comments of the YAML files in ``conf/``. For models, the table and
the JSON also show size, license and memory. A comment in the YAML file of a model contains the
facts that a run does not need. A test recomputes these facts from the model's ``architecture``.
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
"""The kinds of names that can be listed, and the folder of ``conf/`` that contains each kind."""
LISTED = (*GROUPS, "metrics")
CHECKED = "run by make recipes"
"""How each recipe is checked: ``make recipes`` trains, scores and reports a small version of it."""
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
"""The categories that ``dpft list`` can print, each with a description."""


class ListConfig(Section):
    """The configuration of ``dpft list``, conf/list.yaml."""

    what: Literal["tasks", "models", "methods", "recipes", "metrics"] | None = None
    """tasks, models, methods, recipes or metrics; null lists these categories."""
    output: Output = "table"
    """table for people, or json for one object on stdout."""


class ListedModel(StrictModel):
    """A model of conf/model."""

    parameters: AtLeastOne | None = None
    """Number of parameters, including the head of the model's usual task; absent if the YAML file
    does not state the architecture."""
    license: str | None = None
    """License of the weights, as an identifier of the Hub; absent if there are no weights."""
    lora_memory_gb: Positive | None = None
    """Peak memory of one process in GB (10^9 bytes), as estimated by ``dpft plan`` for method=lora.
    The estimate is for rank 8 and one record at a time (512 tokens, or one image)."""
    description: str
    """Description in one line."""


class Listing(StrictModel):
    """The names of the requested kind, each with its description."""

    categories: Mapping[str, str] | None = None
    """The kinds of names, each with a description."""

    tasks: Mapping[str, str] | None = None
    """The tasks, each with a description."""
    models: Mapping[str, ListedModel] | None = None
    """The models, each with its size, license and memory."""
    methods: Mapping[str, str] | None = None
    """The methods, each with a description."""
    recipes: Mapping[str, str] | None = None
    """The recipes, each with a description."""
    metrics: Mapping[str, str] | None = None
    """The metrics, each with a description."""


def expand(overrides: list[str]) -> list[str]:
    """Return the arguments, with ``what=`` before each argument without a key (``tasks``)."""
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
    """Return each name with a one-line description; for recipes, also state how each is checked."""
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
    """Return rows as lines with aligned columns, separated by two spaces."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _files(what: str) -> list[Path]:
    files = (config_directory() / GROUPS[what]).glob("*.yaml")
    return sorted(files, key=lambda file: file.stem)
