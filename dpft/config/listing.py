"""What there is to choose from: tasks, models, methods, recipes and metrics, a line each.

A YAML begins with a line of what it is and where it is from; that line is what is listed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from dpft.config.account import check_output
from dpft.config.composing import Words, given_text
from dpft.config.load import config_directory
from dpft.errors import InputError

GROUPS = {"tasks": "task", "models": "model", "methods": "method", "recipes": "experiment"}
"""What can be asked for, and the folder of conf/ that has it."""
PACKAGE, RUN = "# @package", " Run: "
"""How a line of Hydra's own begins, and what follows the words of the first line."""


CHECKED = "run by make recipes"
"""How each recipe is checked: trained, scored and reported in small, from the list on disk."""


@dataclass(frozen=True, kw_only=True)
class ListConfig:
    """``dpft list``, conf/list.yaml."""

    what: str = ""
    """tasks, models, methods, recipes or metrics."""
    output: str = "table"
    """table for people, or json: one object on stdout."""

    def __post_init__(self) -> None:
        check_output(self.output)
        if self.what not in LISTED:
            raise InputError(
                f"dpft list needs one of {', '.join(LISTED)}, as in dpft list tasks, got"
                f" {self.what!r}."
            )


def listed(what: str) -> dict[str, str]:
    """Returns each name and what it is, in a line.

    Args:
        what: One of ``LISTED``.
    """
    return LISTED[what]()


def _of_group(folder: str) -> Callable[[], dict[str, str]]:
    def found() -> dict[str, str]:
        files = sorted((config_directory() / folder).glob("*.yaml"))
        return {file.stem: first_line(file) for file in files}

    return found


def _recipes() -> dict[str, str]:
    """Returns the recipes, each with how it is checked: ``make recipes`` reads this very folder."""
    return {name: f"{CHECKED}  {line}" for name, line in _of_group("experiment")().items()}


@contextmanager
def naming_recipe(words: Words) -> Iterator[None]:
    """Has a refusal inside the block say which line of a recipe sets the key that it begins with.

    Args:
        words: Of which ``experiment`` is a file of conf/experiment; those that it builds on are
            looked through after it.
    """
    try:
        yield
    except InputError as error:
        recipe = given_text(words.job, "experiment")
        if recipe is None:
            raise
        raise InputError(*(_naming_recipe(fault, recipe) for fault in error.faults)) from None


def _naming_recipe(fault: str, recipe: str) -> str:
    key = fault.partition(" ")[0]
    found = _line_of(key.split("."), recipe) if "." in key else None
    if found is None:
        return fault
    return f"{fault.removesuffix('.')}; {found[0]}, line {found[1]}, sets it to {found[2]}."


def _line_of(keys: list[str], recipe: str) -> tuple[str, int, str] | None:
    """Returns file, line and value of a recipe's own setting of a key; None where it has none."""
    file = config_directory() / "experiment" / f"{recipe}.yaml"
    if not file.is_file():
        return None
    root = node = yaml.compose(file.read_text(encoding="utf-8"))
    for key in keys:
        held = node.value if isinstance(node, yaml.MappingNode) else ()
        node = next((value for name, value in held if name.value == key), None)
    if isinstance(node, yaml.ScalarNode):
        return f"conf/experiment/{recipe}.yaml", node.start_mark.line + 1, node.value
    bases = next((value for name, value in root.value if name.value == "defaults"), None)
    for base in () if bases is None else bases.value:
        if isinstance(base, yaml.ScalarNode) and base.value != "_self_":
            return _line_of(keys, base.value)
    return None


def first_line(file: Path) -> str:
    """Returns what a YAML says of itself: its first line, without the command that follows."""
    lines = file.read_text(encoding="utf-8").splitlines()
    said = next(line for line in lines if not line.startswith(PACKAGE))
    return said.removeprefix("# ").partition(RUN)[0]


def _metrics() -> dict[str, str]:
    from dpft.evaluation.metrics.base import METRICS

    return {name: spec.description for name, spec in METRICS.entries().items()}


LISTED: dict[str, Callable[[], dict[str, str]]] = {
    **{name: _of_group(folder) for name, folder in GROUPS.items()},
    "recipes": _recipes,
    "metrics": _metrics,
}
"""What can be listed."""
