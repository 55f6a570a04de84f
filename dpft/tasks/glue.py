"""GLUE's classification tasks (Wang et al. 2019, arXiv 1804.07461), by infilling or with a head.

One class serves them all: what tells SST-2 from MNLI is configuration, in conf/task/<name>.yaml.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dpft.errors import InputError
from dpft.tasks.base import TASKS
from dpft.tasks.classification import ClassificationTask, as_number
from dpft.tasks.records import LabelledExample

HIDDEN_LABEL = -1
"""What GLUE's test splits have in place of a label."""


NAMES = ("sst2", "mnli", "qqp", "qnli", "cola", "mrpc", "rte", "stsb")


@TASKS.register(*NAMES)
@dataclass(frozen=True, kw_only=True)
class GlueTask(ClassificationTask):
    """A classification task's configuration."""

    text_columns: tuple[str, ...] = ("sentence",)
    """The columns that <S1> and <S2> stand for."""
    max_score: float | None = None
    """Where labels are numbers: the largest; the least is 0."""

    published_hub_name: ClassVar[str | None] = "nyu-mll/glue"

    @property
    def columns(self) -> tuple[str, ...]:
        """The texts and the label."""
        return (*self.text_columns, "label")

    @property
    def untyped_columns(self) -> tuple[str, ...]:
        """The column of the label, which holds a number or the class's name."""
        return ("label",)

    @property
    def texts_per_record(self) -> int:
        """As many texts a record as there are text columns."""
        return len(self.text_columns)

    @property
    def is_score(self) -> bool:
        """Whether labels are scores: where ``max_score`` says the largest."""
        return self.max_score is not None

    def examples(self, row: Mapping[str, Any]) -> tuple[LabelledExample, ...]:
        """Returns the row's one example.

        Args:
            row: The texts, and ``label``: the class's number or name, or the score.

        Raises:
            InputError: The label is hidden (-1) or not one of the task's.
        """
        texts = tuple(row[column].strip() for column in self.text_columns)
        return (LabelledExample(texts=texts, label=self.label(row["label"])),)

    def label(self, value: Any) -> float:
        """Returns the number that a label stands for.

        >>> GlueTask(name="rte", labels=("yes", "no"), objective="cls").label("1")
        1.0

        Args:
            value: A number, a number in digits, or a class's name.

        Raises:
            InputError: It is hidden (-1) or not one of the task's; the message does not quote it.
        """
        if as_number(value) == HIDDEN_LABEL:
            raise InputError(
                "label -1 stands for a hidden label, which can neither be learned nor scored;"
                " choose a split with labels, such as eval.split=validation."
            )
        if self.max_score is None:
            return super().label(value)
        number = as_number(value)
        if number is None or not 0 <= number <= self.max_score:
            raise InputError(f"label must be a number from 0 to {self.max_score:g}.")
        return number

    def prediction(self, text: str) -> float:
        """Returns the class's number, or any number where labels are scores.

        Raises:
            InputError: It is no class, or no number; the message does not quote it.
        """
        if self.max_score is None:
            return super().prediction(text)
        number = as_number(text)
        if number is None or not math.isfinite(number):
            raise InputError("a prediction must be a number.")
        return number

    def label_text(self, value: float) -> str:
        """Returns a label as predictions spell it: the class's name, or the score."""
        return super().label_text(value) if self.max_score is None else f"{value:.6g}"

    def predicted(self, outputs: Sequence[float]) -> float:
        """Returns the likeliest class; or the score, from the probability of the last label.

        >>> words = {"different": "No", "same": "Yes"}
        >>> task = GlueTask(
        ...     name="stsb", labels=("different", "same"), max_score=5.0, label_words=words,
        ...     template="<S1> [MASK]", causal_template="<S1> [MASK]",
        ... )
        >>> task.predicted([0.2, 0.8])
        4.0
        """
        if self.max_score is None:
            return super().predicted(outputs)
        return outputs[0] if len(outputs) == 1 else outputs[-1] * self.max_score

    def distribution(self, label: float) -> tuple[float, ...]:
        """Returns the probabilities of the labels that training aims at, for label words.

        A class has all of it; a score divides it between the two ends, so that the probability
        of the last one, scaled to the largest score, is the score.
        """
        if self.max_score is None:
            return super().distribution(label)
        share = label / self.max_score
        return (1 - share, share)

    def _check_labels(self) -> None:
        super()._check_labels()
        ends = 2
        if self.max_score is not None and (self.max_score <= 0 or len(self.labels) != ends):
            raise InputError(
                "task.max_score must be positive and task.labels name its two ends, got"
                f" {self.max_score} and {list(self.labels)}."
            )
