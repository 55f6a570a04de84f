"""What there is to choose from: tasks, models, methods, recipes and metrics, a line each.

A YAML begins with a line of what it is and where it is from; that line is what is listed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dpft.config.account import check_output
from dpft.config.location import config_directory
from dpft.errors import InputError

GROUPS = {"tasks": "task", "models": "model", "methods": "method", "recipes": "experiment"}
"""What can be asked for, and the folder of conf/ that has it."""
PACKAGE, RUN = "# @package", " Run: "
"""How a line of Hydra's own begins, and what follows the words of the first line."""


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
    "metrics": _metrics,
}
"""What can be listed."""
