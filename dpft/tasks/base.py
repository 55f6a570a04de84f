"""What every task is: configuration, column names, and the way from a row to an example.

A task never reads a file; ``dpft.data.sources`` does, and hands it rows one at a time.
"""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from dpft.errors import InputError

SPLITS = ("train", "validation", "test")
SOURCES = ("hub", "url", "local", "embedded")


@dataclass(frozen=True, kw_only=True)
class Example:
    """One record, the unit of privacy: a text to condition on and a text to learn."""

    prompt: str
    """Text the model conditions on, separator included; no loss on it."""
    target: str
    """Text the loss is on, without the end-of-text token."""
    group: str
    """Evaluation writes one prediction per distinct group; its targets are the references."""
    separator: str = ""
    """The end of ``prompt`` that stays when a long prompt is cut; may be empty."""

    def __post_init__(self) -> None:
        if not self.prompt.endswith(self.separator):
            raise ValueError("prompt must end with separator.")


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Base of every task; its fields are the task's configuration, ``conf/task/<name>.yaml``."""

    name: str
    source: str = "hub"
    """Where rows come from: hub, url, local or embedded; a given data_dir means local."""
    data_dir: str | None = None
    """Folder with train|validation|test as .csv, .jsonl or .jsonl.gz."""
    num_train_examples: int | None = None
    """The public number of training records, as published."""
    max_length: int = 100
    """Longest tokenized example; the prompt is cut, never the target's end."""
    separator: str = "\n"
    """Text between the linearised record and the target."""
    hub_name: str | None = None
    """Data set on the Hugging Face hub."""
    hub_revision: str | None = None
    """Branch, tag or commit on the hub."""
    urls: dict[str, str] = field(default_factory=dict)
    """Split name to the address of its file, for source=url."""
    embedded_num_train_examples: int | None = None
    """Rows of the embedded training sample, for source=embedded."""
    column_aliases: dict[str, str] = field(default_factory=dict)
    """Other names of the columns: the name in a file to the name in ``columns``."""

    metrics: tuple[str, ...] = ()
    """Modules of ``dpft.evaluation.metrics`` that score it."""

    published_hub_name: ClassVar[str | None] = None
    """The hub data set whose splits are published; another one is the user's own."""
    published_urls: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """The addresses of published splits; another address is the user's own."""
    columns: ClassVar[tuple[str, ...]]
    """Columns every row must have."""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise InputError(
                f"task.source must be one of {', '.join(SOURCES)}, got {self.source!r}."
            )
        if self.max_length < 2:
            raise InputError(f"task.max_length must be at least 2, got {self.max_length}.")
        unknown = sorted(set(self.column_aliases.values()) - set(self.columns))
        if unknown:
            raise InputError(
                f"task.column_aliases must point to {', '.join(self.columns)}, got {unknown[0]!r}."
            )

    @property
    def effective_source(self) -> str:
        """The source rows are read from: ``data_dir`` means local, whatever ``source`` says."""
        return "local" if self.data_dir is not None else self.source

    @property
    def public_num_train_examples(self) -> int | None:
        """The number of training records that stands in public configuration, if one does."""
        by_source = {
            "embedded": self.embedded_num_train_examples,
            "local": None,
        }
        return by_source.get(self.effective_source, self.num_train_examples)

    def is_published(self, split: str) -> bool:
        """Returns whether the split's rows are published, so that showing them harms no one."""
        by_source = {
            "embedded": True,
            "hub": self.hub_name is not None and self.hub_name == self.published_hub_name,
            "url": self.urls.get(split, "") == self.published_urls.get(split),
        }
        return by_source.get(self.effective_source, False)

    @abstractmethod
    def example(self, row: Mapping[str, str]) -> Example:
        """Returns the example one row stands for.

        Args:
            row: Column name to text; every name in ``columns`` is present.

        Raises:
            InputError: The row's text does not have the task's form. The message never quotes
                it: rows are private (DESIGN §6.7). The caller adds file and line.
        """

    def repair(self, text: str) -> str:
        """Returns text as the data set's official reader reads it; by default, as it is.

        Outputs files are joined to references on repaired text.
        """
        return text


def task_names() -> list[str]:
    """Returns the names of the tasks in this package, one module each."""
    package = importlib.import_module("dpft.tasks")
    infrastructure = {"base", "templates"}
    return sorted({m.name for m in pkgutil.iter_modules(package.__path__)} - infrastructure)


def task_class(name: str) -> type[Task]:
    """Returns the task class that ``dpft/tasks/<name>.py`` calls ``TASK``.

    Raises:
        InputError: There is no such task.
    """
    if name not in task_names():
        raise InputError(f"task.name must be one of {', '.join(task_names())}, got {name!r}.")
    task: type[Task] = importlib.import_module(f"dpft.tasks.{name}").TASK
    return task
