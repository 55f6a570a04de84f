"""What all forms of GLUE's tasks share: their configuration, their columns and their labels.

By infilling or with a head a record's answer is a label (``glue``); as T5 has the same data, it is
a text (``glue_texts``).
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dpft.errors import InputError
from dpft.tasks.base import TextualTask
from dpft.tasks.classification import INFILLING, as_number, check_classes, class_number

HIDDEN_LABEL = -1
"""What GLUE's test splits have in place of a label."""


@dataclass(frozen=True, kw_only=True)
class GlueFields(TextualTask):
    """The fields of every form."""

    text_columns: tuple[str, ...] = ("sentence",)
    """The columns that <S1> and <S2> stand for."""
    max_score: float | None = None
    """Where labels are numbers: the largest; the least is 0."""
    objective: str = INFILLING
    """infilling: label words by the language model; cls: a classification head; text2text: a
    seq2seq model writes the label, as T5 does."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of their numbers; with max_score, its two ends."""
    template: str = ""
    """For masked language models: words with <S1>, <S2> and [MASK]."""
    causal_template: str = ""
    """For causal and seq2seq models: ends with [MASK], where the label word continues it."""
    label_words: dict[str, str] = field(default_factory=dict)
    """Label to the word that stands for it, one token of the model's tokenizer."""

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
    def is_score(self) -> bool:
        """Whether labels are scores: where ``max_score`` says the largest."""
        return self.max_score is not None

    def label(self, value: Any) -> float:
        """Returns the number that a label stands for.

        >>> from dpft.tasks.glue import GlueTask
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
            return class_number(self.labels, value, "label")
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
            return class_number(self.labels, text, "a prediction")
        number = as_number(text)
        if number is None or not math.isfinite(number):
            raise InputError("a prediction must be a number.")
        return number

    def label_text(self, value: float) -> str:
        """Returns a label as predictions spell it: the class's name, or the score."""
        return self.labels[int(value)] if self.max_score is None else f"{value:.6g}"

    def _check_labels(self) -> None:
        check_classes(self.labels)
        ends = 2
        if self.max_score is not None and (self.max_score <= 0 or len(self.labels) != ends):
            raise InputError(
                "task.max_score must be positive and task.labels name its two ends, got"
                f" {self.max_score} and {list(self.labels)}."
            )
