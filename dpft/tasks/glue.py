"""GLUE's tasks (Wang et al. 2019, arXiv 1804.07461): by infilling, with a head, or text to text.

One class serves them all: what tells SST-2 from MNLI is configuration, in conf/task/<name>.yaml.
``task.objective=text2text`` chooses the other class, ``GlueTexts``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dpft.tasks.base import TASKS, Task
from dpft.tasks.classification import ClassificationTask
from dpft.tasks.glue_form import GlueFields
from dpft.tasks.glue_texts import TEXT2TEXT, GlueTexts
from dpft.tasks.records import LabeledExample

NAMES = ("sst2", "mnli", "qqp", "qnli", "cola", "mrpc", "rte", "stsb")


@TASKS.register(*NAMES)
@dataclass(frozen=True, kw_only=True)
class GlueTask(GlueFields, ClassificationTask):
    """A task whose answers are labels."""

    other_objectives: ClassVar[tuple[str, ...]] = (TEXT2TEXT,)

    @classmethod
    def chosen(cls, values: Mapping[str, Any]) -> type[Task]:
        """Returns the class of the form that ``objective`` chooses."""
        return GlueTexts if values.get("objective") == TEXT2TEXT else cls

    @property
    def texts_per_record(self) -> int:
        """As many texts a record as there are text columns."""
        return len(self.text_columns)

    def examples(self, row: Mapping[str, Any]) -> tuple[LabeledExample, ...]:
        """Returns the row's one example.

        Args:
            row: The texts, and ``label``: the class's number or name, or the score.

        Raises:
            InputError: The label is hidden (-1) or not one of the task's.
        """
        texts = tuple(row[column].strip() for column in self.text_columns)
        return (LabeledExample(texts=texts, label=self.label(row["label"])),)

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
