"""Your own classes: a text made by a template, and the column of its class."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpft.errors import InputError
from dpft.tasks.classification import (
    ClassificationTask,
    as_number,
    but_is_empty,
    class_number,
)
from dpft.tasks.columns import ColumnTemplate
from dpft.tasks.custom_form import CustomFields
from dpft.tasks.records import LabeledExample
from dpft.tasks.values import spelled

TWO_CLASSES = 2


@dataclass(frozen=True, kw_only=True)
class CustomLabels(CustomFields, ClassificationTask):
    """``task.label`` with ``task.text`` and ``task.labels``."""

    def __post_init__(self) -> None:
        if not self.metrics:
            two = len(self.labels) == TWO_CLASSES
            object.__setattr__(self, "metrics", ("accuracy", "f1") if two else ("accuracy",))
        super().__post_init__()
        assert self._text.columns  # parsed here: bad braces fail early

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the template, each once, and the label's."""
        return tuple(dict.fromkeys((*self._text.columns, self._label)))

    @property
    def texts_per_record(self) -> int:
        """One text a record, for which ``<S1>`` stands."""
        return 1

    def column_key(self, column: str) -> str | None:
        """See ``Task.column_key``."""
        return self._text.key if column in self._text.columns else "task.label"

    def examples(self, row: Mapping[str, Any]) -> tuple[LabeledExample, ...]:
        """Returns the row's one example."""
        text = self._text.fill(row).strip()
        return (LabeledExample(texts=(text,), label=self.label(row[self._label])),)

    def label(self, value: Any) -> float:
        """Returns the number of the class that a value names.

        Names lead; a number is a class's place in ``task.labels``, from 0, only where no class is
        itself named by a number.

        Raises:
            InputError: It is not one of the task's classes; the message does not quote it.
        """
        name = spelled(value)
        if name in self.labels:
            return float(self.labels.index(name))
        if any(as_number(label) is not None for label in self.labels):
            raise InputError(
                f"the column {self._label}, which task.label names, must hold one of"
                f" {', '.join(self.labels)}{but_is_empty(value)}."
            )
        return class_number(
            self.labels, value, f"the column {self._label}, which task.label names,"
        )

    def prediction(self, text: str) -> float:
        """See ``LabelTask.prediction``."""
        name = text.strip()
        known = name in self.labels
        return float(self.labels.index(name)) if known else super().prediction(text)

    @property
    def _label(self) -> str:
        return self.label_column or ""

    @cached_property
    def _text(self) -> ColumnTemplate:
        return ColumnTemplate.parse(self.text_template or "", key="task.text")
