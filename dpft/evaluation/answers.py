"""How a split is scored, by what its answers are: texts, labels or attributes.

Texts are grouped: one is written for each distinct input, and compared to all of its references.
Labels and attributes are not: each record is scored apart.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpft.evaluation.attributes import model_attributes, read_attributes, scored_attributes
from dpft.evaluation.eval_config import EvalConfig
from dpft.evaluation.groups import group_examples
from dpft.evaluation.labels import label_input, read_labels
from dpft.evaluation.scored import (
    OnProgress,
    Scored,
    check_not_empty,
    groups_to_score,
    model_labels,
    model_texts,
    scored_labels,
    scored_texts,
)
from dpft.generation.decoding import DecodeConfig
from dpft.kinds import ATTRIBUTES, LABELS, TEXTS
from dpft.tasks.base import Task
from dpft.tasks.records import Record, are_texts

if TYPE_CHECKING:
    from dpft.evaluation.outputs import ModelOutputs


class Answers(ABC):
    """Answers of one kind."""

    @abstractmethod
    def to_score(
        self, task: Any, examples: Sequence[Record], config: EvalConfig, split: str
    ) -> Sequence[Any]:
        """Returns what is scored of a split, ``config.limit`` at most.

        Raises:
            InputError: The split is empty.
        """

    @abstractmethod
    def inputs(self, task: Any, examples: Sequence[Record]) -> list[str]:
        """Returns a split's inputs in the words by which a file of predictions names them."""

    @abstractmethod
    def of_model(
        self,
        task: Any,
        chosen: Sequence[Any],
        outputs: "ModelOutputs",
        decode: DecodeConfig,
        on_progress: OnProgress | None,
    ) -> Scored:
        """Returns what a model answers to ``to_score``'s, beside what is right."""

    @abstractmethod
    def of_file(self, task: Any, chosen: Sequence[Any], texts: Sequence[str]) -> Scored:
        """Returns what the texts of a file of predictions answer, one for each of ``chosen``.

        Raises:
            InputError: One is no answer.
        """


class TextAnswers(Answers):
    """A text for each distinct input."""

    def to_score(
        self, task: Any, examples: Sequence[Record], config: EvalConfig, split: str
    ) -> Sequence[Any]:
        """See ``Answers.to_score``."""
        return groups_to_score(task, examples, config, split)

    def inputs(self, task: Any, examples: Sequence[Record]) -> list[str]:
        """See ``Answers.inputs``."""
        assert are_texts(examples)
        return [group.input for group in group_examples(examples)]

    def of_model(
        self,
        task: Any,
        chosen: Sequence[Any],
        outputs: "ModelOutputs",
        decode: DecodeConfig,
        on_progress: OnProgress | None,
    ) -> Scored:
        """See ``Answers.of_model``."""
        return model_texts(task, chosen, outputs, decode, on_progress)

    def of_file(self, task: Any, chosen: Sequence[Any], texts: Sequence[str]) -> Scored:
        """See ``Answers.of_file``."""
        return scored_texts(task, chosen, texts)


class LabelAnswers(Answers):
    """A class, a number or attributes for each record."""

    def to_score(
        self, task: Any, examples: Sequence[Record], config: EvalConfig, split: str
    ) -> Sequence[Any]:
        """See ``Answers.to_score``."""
        check_not_empty(task, examples, split)
        return examples[: config.limit]

    def inputs(self, task: Any, examples: Sequence[Any]) -> list[str]:
        """See ``Answers.inputs``."""
        return [label_input(number, example) for number, example in enumerate(examples)]

    def of_model(
        self,
        task: Any,
        chosen: Sequence[Any],
        outputs: "ModelOutputs",
        decode: DecodeConfig,
        on_progress: OnProgress | None,
    ) -> Scored:
        """See ``Answers.of_model``."""
        return model_labels(task, chosen, outputs, on_progress)

    def of_file(self, task: Any, chosen: Sequence[Any], texts: Sequence[str]) -> Scored:
        """See ``Answers.of_file``."""
        return scored_labels(task, chosen, read_labels(task, texts))


class AttributeAnswers(LabelAnswers):
    """Several attributes of each record, each there or not."""

    def of_model(
        self,
        task: Any,
        chosen: Sequence[Any],
        outputs: "ModelOutputs",
        decode: DecodeConfig,
        on_progress: OnProgress | None,
    ) -> Scored:
        """See ``Answers.of_model``."""
        return model_attributes(task, chosen, outputs, on_progress)

    def of_file(self, task: Any, chosen: Sequence[Any], texts: Sequence[str]) -> Scored:
        """See ``Answers.of_file``: names of the attributes that are there, a comma between."""
        return scored_attributes(task, chosen, read_attributes(task, texts))


ANSWERS: dict[str, Answers] = {
    TEXTS: TextAnswers(),
    LABELS: LabelAnswers(),
    ATTRIBUTES: AttributeAnswers(),
}
"""By what ``Task.answers`` says."""


def answers_of(task: Task) -> Answers:
    """Returns how a task is scored."""
    return ANSWERS[task.answers]
