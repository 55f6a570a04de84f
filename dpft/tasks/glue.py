"""GLUE's classification tasks (Wang et al. 2019, arXiv 1804.07461), by infilling or with a head.

One class serves them all: what tells SST-2 from MNLI is configuration, in conf/task/<name>.yaml.
Text infilling (Li et al. 2022, section 4 and Table 10; templates of Gao et al. 2020) asks the
language model for a label word in place of a mask, so no new parameter has to be learned.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

from dpft.errors import InputError
from dpft.tasks.base import LabelledExample, LabelTask, Piece
from dpft.tasks.templates import Template

INFILLING, CLS = "infilling", "cls"
OBJECTIVES = (INFILLING, CLS)
HIDDEN_LABEL = -1
"""What GLUE's test splits have in place of a label."""


@dataclass(frozen=True, kw_only=True)
class GlueTask(LabelTask):
    """A classification task's configuration."""

    objective: str = INFILLING
    """infilling: label words by the language model; cls: a classification head."""
    text_columns: tuple[str, ...] = ("sentence",)
    """The columns that <S1> and <S2> stand for."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of their numbers; with max_score, its two ends."""
    max_score: float | None = None
    """Where labels are numbers: the largest; the least is 0."""
    template: str = ""
    """For masked language models: words with <S1>, <S2> and [MASK]."""
    causal_template: str = ""
    """For causal and seq2seq models: ends with [MASK], where the label word continues it."""
    label_words: dict[str, str] = field(default_factory=dict)
    """Label to the word that stands for it, one token of the model's tokenizer."""

    published_hub_name: ClassVar[str | None] = "nyu-mll/glue"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective not in OBJECTIVES:
            raise InputError(
                f"task.objective must be one of {', '.join(OBJECTIVES)}, got {self.objective!r}."
            )
        self._check_labels()
        if self.objective == INFILLING:
            self._check_templates()

    @property
    def columns(self) -> tuple[str, ...]:
        """The texts and the label."""
        return (*self.text_columns, "label")

    @property
    def untyped_columns(self) -> tuple[str, ...]:
        """The label: a number or the class's name."""
        return ("label",)

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
        if _number(value) == HIDDEN_LABEL:
            raise InputError(
                "label -1 stands for a hidden label, which can neither be learned nor scored;"
                " choose a split with labels, such as eval.split=validation."
            )
        if self.max_score is None:
            return self._class_number(value, "label")
        number = _number(value)
        if number is None or not 0 <= number <= self.max_score:
            raise InputError(f"label must be a number from 0 to {self.max_score:g}.")
        return number

    def prediction(self, text: str) -> float:
        """Returns the class's number, or any number where labels are scores.

        Raises:
            InputError: It is no class, or no number; the message does not quote it.
        """
        if self.max_score is None:
            return self._class_number(text, "a prediction")
        number = _number(text)
        if number is None or not math.isfinite(number):
            raise InputError("a prediction must be a number.")
        return number

    def label_text(self, value: float) -> str:
        """Returns a label as predictions spell it: the class's name, or the score."""
        if self.max_score is not None:
            return f"{value:.6g}"
        return self.labels[int(value)]

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
            return float(max(range(len(outputs)), key=lambda index: outputs[index]))
        return outputs[0] if len(outputs) == 1 else outputs[-1] * self.max_score

    @property
    def words(self) -> tuple[str, ...]:
        """The label words, in the order of the labels."""
        return tuple(self.label_words[name] for name in self.labels)

    def pieces(self, example: LabelledExample, *, causal: bool) -> tuple[Piece, ...]:
        """Returns a record's filled template, for causal and seq2seq models or for masked ones."""
        return self._parsed(causal=causal).fill(example.texts)

    def blank_before_mask(self, *, causal: bool) -> bool:
        """Returns whether a blank stands before the label word."""
        return self._parsed(causal=causal).blank_before_mask

    def distribution(self, label: float) -> tuple[float, ...]:
        """Returns the probabilities of the labels that training aims at, for label words.

        A class has all of it; a score divides it between the two ends, so that the probability
        of the last one, scaled to the largest score, is the score.
        """
        if self.max_score is not None:
            share = label / self.max_score
            return (1 - share, share)
        return tuple(float(index == label) for index in range(len(self.labels)))

    def _class_number(self, value: Any, what: str) -> float:
        number = float(self.labels.index(value)) if value in self.labels else _number(value)
        if number is None or number not in range(len(self.labels)):
            known = ", ".join(f"{index} ({name})" for index, name in enumerate(self.labels))
            raise InputError(f"{what} must be one of {known}.")
        return number

    def _parsed(self, *, causal: bool) -> Template:
        text = self.causal_template if causal else self.template
        return _parse(text, len(self.text_columns))

    def _check_labels(self) -> None:
        least = 2
        if len(set(self.labels)) != len(self.labels) or len(self.labels) < least:
            raise InputError(
                f"task.labels must name at least {least} different classes, got"
                f" {list(self.labels)}."
            )
        if self.max_score is not None and (self.max_score <= 0 or len(self.labels) != least):
            raise InputError(
                "task.max_score must be positive and task.labels name its two ends, got"
                f" {self.max_score} and {list(self.labels)}."
            )

    def _check_templates(self) -> None:
        count = len(self.text_columns)
        Template.parse(self.template, texts=count)
        causal = Template.parse(self.causal_template, texts=count, key="task.causal_template")
        if not causal.ends_with_mask:
            raise InputError(
                f"task.causal_template must end with [MASK], got {self.causal_template!r}; a causal"
                " model answers after the text."
            )
        if set(self.label_words) != set(self.labels):
            raise InputError(
                f"task.label_words must give a word for each of {', '.join(self.labels)}, got"
                f" {', '.join(self.label_words) or 'none'}."
            )
        if len(set(self.words)) != len(self.words):
            raise InputError(
                f"task.label_words must be different words, got {', '.join(self.words)}."
            )


@cache
def _parse(text: str, texts: int) -> Template:
    """Returns a template, parsed once for all records."""
    return Template.parse(text, texts=texts)


def _number(value: Any) -> float | None:
    """Returns a label as a number, or None."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number == number else None


NAMES = ("sst2", "mnli", "qqp", "qnli", "cola", "mrpc", "rte", "stsb")
TASKS = dict.fromkeys(NAMES, GlueTask)
