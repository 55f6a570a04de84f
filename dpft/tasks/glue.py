"""GLUE tasks (Wang et al. 2019, arXiv 1804.07461): infilling, classifier, or text to text.

In the text-to-text form of T5, the prompt contains the texts with their column names, and the model
generates the label as a word.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from dpft.errors import InputError
from dpft.tasks.base import TASKS, Example, LabeledExample, SeqToSeqTask, Task, TextualTask
from dpft.tasks.classification import (
    INFILLING,
    ClassificationTask,
    as_number,
    check_classes,
    class_number,
)

HIDDEN_LABEL = -1
"""Label in GLUE's test splits, which hide the true labels."""


class GlueFields(TextualTask):
    """The fields of every form of a GLUE task."""

    text_columns: tuple[str, ...] = ("sentence",)
    """The columns that <S1> and <S2> represent."""
    max_score: float | None = None
    """The largest score if labels are numbers; the smallest is 0."""
    objective: str = INFILLING
    """infilling for label words of the language model, cls for a classification head, or text2text
    for a seq2seq model that generates the label, as T5 does."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of their numbers; with max_score, the names of its two
    ends."""
    template: str = ""
    """Template for masked language models: text with <S1>, <S2> and [MASK]."""
    causal_template: str = ""
    """Template for causal and seq2seq models: text that ends with [MASK], which the label word
    replaces."""
    label_words: dict[str, str] = Field(default_factory=dict)
    """The word that represents each label, one token of the model's tokenizer."""

    published_hub_name: ClassVar[str | None] = "nyu-mll/glue"
    untyped_columns: ClassVar[tuple[str, ...]] = ("label",)
    """The label column, which contains a number or the name of a class."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the texts and of the label."""
        return (*self.text_columns, "label")

    @property
    def is_score(self) -> bool:
        """Whether labels are scores: ``max_score`` is set."""
        return self.max_score is not None

    def label(self, value: Any) -> float:
        """Return the number that a label represents.

        >>> from dpft.tasks.glue import GlueTask
        >>> GlueTask(name="rte", labels=("yes", "no"), objective="cls").label("1")
        1.0

        Raises:
            InputError: The label is hidden (-1) or is not one of the task's labels. The message
                does not quote it.
        """
        if as_number(value) == HIDDEN_LABEL:
            raise InputError(
                "label is -1, which marks a hidden label that can be neither learned nor scored."
                " Choose a split with labels.",
                key="label",
                hint="eval.split=validation",
            )
        if self.max_score is None:
            return class_number(self.labels, value, "label", key="label")
        number = as_number(value)
        if number is None or not 0 <= number <= self.max_score:
            raise InputError(f"label must be a number from 0 to {self.max_score:g}.", key="label")
        return number

    def prediction(self, text: str) -> float:
        """Return the number of the class, or any number if labels are scores.

        Raises:
            InputError: The text is not a class, or not a number. The message does not quote it.
        """
        if self.max_score is None:
            return class_number(self.labels, text, "a prediction", key="predictions")
        number = as_number(text)
        if number is None or not math.isfinite(number):
            raise InputError("a prediction must be a number.", key="predictions")
        return number

    def label_text(self, value: float) -> str:
        """Return a label as predictions spell it: the name of the class, or the score."""
        return self.labels[int(value)] if self.max_score is None else f"{value:.6g}"

    def _check_labels(self) -> None:
        check_classes(self.labels)
        ends = 2
        if self.max_score is not None and (self.max_score <= 0 or len(self.labels) != ends):
            raise InputError(
                "task.max_score must be positive and task.labels must name its two ends, got"
                f" {self.max_score} and {list(self.labels)}.",
                key="task.max_score",
                value=self.max_score,
            )


TEXT2TEXT = "text2text"
NO_LABEL = -1.0
"""Label of a generated text that is not a label, as in T5's own evaluation."""
STEPS_PER_POINT = 5
"""Scores are rounded to multiples of one fifth."""


class GlueTexts(GlueFields, SeqToSeqTask):
    """A GLUE task whose answers are texts.

    >>> task = GlueTexts(name="mnli", text_columns=("premise", "hypothesis"), labels=("yes", "no"))
    >>> task.prompt({"premise": "It rains.", "hypothesis": "It is wet."}).prompt
    'mnli hypothesis: It is wet. premise: It rains.'
    """

    objective: str = TEXT2TEXT

    scores_rows: ClassVar[bool] = True

    def _check_fields(self) -> None:
        # The accuracy of the text equals the accuracy of the class, and also works if labels are
        # scores.
        others = (metric for metric in self.metrics if metric not in ("accuracy", "text_accuracy"))
        object.__setattr__(self, "metrics", ("text_accuracy", *others))
        super()._check_fields()
        self._check_labels()

    @property
    def prompt_columns(self) -> tuple[str, ...]:
        """The columns of the texts."""
        return self.text_columns

    def examples(self, row: Mapping[str, Any]) -> tuple[Example, ...]:
        """Return the row's one example: its texts with their column names, and its label's word.

        Raises:
            InputError: The label is hidden (-1) or is not one of the task's labels.
        """
        return (replace(self.prompt(row), target=self.target(self.label(row["label"]))),)

    def target(self, label: float) -> str:
        """Return the text that the model learns to generate for a label.

        >>> GlueTexts(name="stsb", labels=("different", "same"), max_score=5.0).target(3.75)
        '3.8'
        """
        if self.max_score is None:
            return self.label_text(label)
        return f"{round(label * STEPS_PER_POINT) / STEPS_PER_POINT:.1f}"

    def prompt(self, row: Mapping[str, Any]) -> Example:
        """See ``TextTask.prompt``."""
        words = [f"{column}: {row[column].strip()}" for column in sorted(self.text_columns)]
        text = " ".join((self.name, *words))
        return Example(prompt=text, target="", group=text, lead=self.name)

    def canary(self, read: Sequence[str], learned: Sequence[str], *, number: int) -> Example:
        """See ``Task.canary``: the first column contains all words that the model reads."""
        row = dict.fromkeys(self.text_columns, "") | {self.text_columns[0]: " ".join(read)}
        return replace(self.prompt(row), target=" ".join(learned))

    def record(self, row: Mapping[str, Any], text: str) -> dict[str, Any] | None:
        """See ``TextTask.record``: None if the text spells no label."""
        label = self.spelt_label(text)
        if label == NO_LABEL:
            return None
        return {column: row[column] for column in self.text_columns} | {
            "label": label if self.is_score else int(label)
        }

    def spelt_label(self, text: str) -> float:
        """Return the label that a text spells exactly, or ``NO_LABEL`` if it spells no label.

        A class is spelled by its exact name, and a score by any number in its range.
        """
        if not self.is_score:
            return float(self.labels.index(text)) if text in self.labels else NO_LABEL
        try:
            return self.label(text)
        except InputError:
            return NO_LABEL

    def spelt_labels(self, texts: Sequence[str]) -> list[float]:
        """See ``TextTask.spelt_labels``."""
        return [self.spelt_label(text.strip()) for text in texts]


NAMES = ("sst2", "mnli", "qqp", "qnli", "cola", "mrpc", "rte", "stsb")


@TASKS.register(*NAMES)
class GlueTask(GlueFields, ClassificationTask):
    """A GLUE task whose answers are labels."""

    other_objectives: ClassVar[tuple[str, ...]] = (TEXT2TEXT,)

    @classmethod
    def chosen(cls, values: Mapping[str, Any]) -> type[Task]:
        """Return the class of the form that ``objective`` selects."""
        return GlueTexts if values.get("objective") == TEXT2TEXT else cls

    @property
    def texts_per_record(self) -> int:
        """One text for each text column."""
        return len(self.text_columns)

    def examples(self, row: Mapping[str, Any]) -> tuple[LabeledExample, ...]:
        """Return the row's one example.

        Raises:
            InputError: The label is hidden (-1) or is not one of the task's labels.
        """
        texts = tuple(row[column].strip() for column in self.text_columns)
        return (LabeledExample(texts=texts, label=self.label(row["label"])),)

    def predicted(self, outputs: Sequence[float]) -> float:
        """Return the most likely class or, if the task has scores, the score.

        The score is the probability of the last label times the largest score.

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
        """Return the target probabilities of the labels in training, for label words.

        A class has probability 1. For a score, the probability is divided between the two labels,
        so that the probability of the last label times the largest score is the score.
        """
        if self.max_score is None:
            return super().distribution(label)
        share = label / self.max_score
        return (1 - share, share)
