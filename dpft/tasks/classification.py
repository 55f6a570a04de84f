"""Base class of classification tasks, with text infilling or a classification head.

Text infilling (Li et al. 2022, section 4 and Table 10; templates of Gao et al. 2020) asks the
language model for a label word in place of a mask, so that no new parameters have to be learned.
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

from pydantic import Field

from dpft.errors import InputError
from dpft.tasks.base import LabeledExample, LabelTask, TemplateSegment, TextualTask
from dpft.tasks.templates import Template

INFILLING, CLS = "infilling", "cls"
OBJECTIVES: tuple[str, ...] = (INFILLING, CLS)


class ClassTask(LabelTask):
    """A task whose answers are classes, given by name or by number."""

    labels: tuple[str, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the model's outputs, in the order of their numbers."""
        return self.labels

    def label(self, value: Any) -> float:
        """See ``LabelTask.label``: the number of the class that a value names or numbers."""
        return class_number(self.classes, value, "label", key="label")

    def prediction(self, text: str) -> float:
        """See ``LabelTask.prediction``: the number of the class."""
        return class_number(self.classes, text, "a prediction", key="predictions")

    def label_text(self, value: float) -> str:
        """See ``LabelTask.label_text``: the name of the class."""
        return self.classes[int(value)]

    def predicted(self, outputs: Sequence[float]) -> float:
        """See ``LabelTask.predicted``: the most likely class."""
        return float(max(range(len(outputs)), key=lambda index: outputs[index]))


class ClassificationTask(ClassTask, TextualTask):
    """A text task whose answers are classes."""

    objective: str = INFILLING
    """infilling for label words that the language model predicts, or cls for a classification head.
    """
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

    other_objectives: ClassVar[tuple[str, ...]] = ()
    """Further objectives for the same data, which other classes implement (see ``chosen``)."""

    def _check_fields(self) -> None:
        super()._check_fields()
        if self.objective not in OBJECTIVES:
            choices = ", ".join((*OBJECTIVES, *self.other_objectives))
            raise InputError(
                f"task.objective must be one of {choices}, got {self.objective!r}.",
                key="task.objective",
                value=self.objective,
                hint=f"task.objective={OBJECTIVES[0]}",
            )
        self._check_labels()
        if self.objective == INFILLING:
            self._check_templates()

    @property
    @abstractmethod
    def texts_per_record(self) -> int:
        """Number of texts of a record: one or two."""

    @property
    def is_score(self) -> bool:
        """Whether labels are numbers and not classes."""
        return False

    @property
    def words(self) -> tuple[str, ...]:
        """The label words, in the order of the labels."""
        return tuple(self.label_words[name] for name in self.labels)

    def canary(self, read: Sequence[str], learned: Sequence[str], *, number: int) -> LabeledExample:
        """See ``Task.canary``: ``number`` selects the class; a score is 0 or 1."""
        texts = (" ".join(read), " ".join(learned))
        return LabeledExample(
            texts=texts if self.texts_per_record == len(texts) else (" ".join(texts),),
            label=self.label(number % len(self.labels)),
        )

    def pieces(self, example: LabeledExample, *, causal: bool) -> tuple[TemplateSegment, ...]:
        """Return a record's filled template, for causal and seq2seq models or for masked models."""
        return self._parsed(causal=causal).fill(example.texts)

    def blank_before_mask(self, *, causal: bool) -> bool:
        """Return whether a blank precedes the label word."""
        return self._parsed(causal=causal).blank_before_mask

    def distribution(self, label: float) -> tuple[float, ...]:
        """Return the target probabilities of the labels in training: 1 for the record's class."""
        return tuple(float(index == label) for index in range(len(self.labels)))

    def _parsed(self, *, causal: bool) -> Template:
        key = "causal_template" if causal else "template"
        text = self.causal_template if causal else self.template
        if not text:
            kind = "causal or seq2seq" if causal else "masked"
            raise InputError(
                f"task.objective=infilling with a {kind} model needs task.{key}, got none.",
                key=f"task.{key}",
            )
        return _parse(text, self.texts_per_record, f"task.{key}")

    def _check_labels(self) -> None:
        check_classes(self.labels)

    def _check_templates(self) -> None:
        """Reject templates that cannot be filled; an empty template is rejected when it is used."""
        if not self.template and not self.causal_template:
            raise InputError(
                "task.objective=infilling needs task.template (masked models) or"
                " task.causal_template (causal and seq2seq models), got neither.",
                key="task.template",
            )
        if self.template:
            self._parsed(causal=False)
        if self.causal_template and not self._parsed(causal=True).ends_with_mask:
            raise InputError(
                "task.causal_template must end with [MASK], because a causal model answers after"
                f" the text, got {self.causal_template!r}.",
                key="task.causal_template",
                value=self.causal_template,
            )
        if set(self.label_words) != set(self.labels):
            raise InputError(
                f"task.label_words must contain a word for each of {', '.join(self.labels)}, got"
                f" {', '.join(self.label_words) or 'none'}.",
                key="task.label_words",
                value=self.label_words,
            )
        if len(set(self.words)) != len(self.words):
            raise InputError(
                f"task.label_words must be different words, got {', '.join(self.words)}.",
                key="task.label_words",
                value=self.label_words,
            )


def check_classes(labels: Sequence[str]) -> None:
    """Reject class names if there are too few, or if two are equal.

    Raises:
        InputError: There are too few names, or two equal names.
    """
    least = 2
    if len(set(labels)) != len(labels) or len(labels) < least:
        raise InputError(
            f"task.labels must name at least {least} different classes, got {list(labels)}.",
            key="task.labels",
            value=list(labels),
            hint="'task.labels=[negative,positive]'",
        )


def class_number(labels: Sequence[str], value: Any, what: str, *, key: str) -> float:
    """Return the number of a class, given its name or number.

    Args:
        labels: Names of the classes, in the order of their numbers.
        value: A name, a number, or a number in digits.
        what: Description of the value, for the message.
        key: Key of the error.

    Raises:
        InputError: The value is not a class. The message does not quote it.
    """
    number = float(labels.index(value)) if value in labels else as_number(value)
    if number is None or number not in range(len(labels)):
        classes = ", ".join(f"{index} ({name})" for index, name in enumerate(labels))
        raise InputError(f"{what} must be one of {classes}{but_is_empty(value)}.", key=key)
    return number


def but_is_empty(value: Any) -> str:
    """Return the end of a message about an invalid label, if the value is empty."""
    is_empty = value is None or value != value or (isinstance(value, str) and not value.strip())
    return ", got an empty value" if is_empty else ""


def as_number(value: Any) -> float | None:
    """Return a label as a number, or None if it is not a number."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number == number else None


@cache
def _parse(text: str, texts: int, key: str) -> Template:
    """Return a template, parsed once for all records."""
    return Template.parse(text, texts=texts, key=key)
