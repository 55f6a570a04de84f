"""GLUE as T5 has it: the record is a prompt with the columns' names, its label a word to write.

The formats are those of Raffel et al. 2020 (arXiv 1910.10683), section 2.4 and Appendix D: the name
of the task, then each column's name and text, in the order of the names. STS-B's score is rounded
to the nearest 0.2 and spelt with one decimal. Ponomareva et al. 2022 fine-tune on them, and count
the accuracy of the generated text for every task, CoLA and STS-B among them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dpft.errors import InputError
from dpft.tasks.base import SeqToSeqTask
from dpft.tasks.glue_form import GlueFields
from dpft.tasks.records import Example

TEXT2TEXT = "text2text"
NO_LABEL = -1.0
"""What stands for a text that spells no label, as T5's own evaluation has it."""
STEPS_PER_POINT = 5
"""A score is rounded to a fifth of a point."""


@dataclass(frozen=True, kw_only=True)
class GlueTexts(GlueFields, SeqToSeqTask):
    """A task of GLUE whose answers are texts.

    >>> task = GlueTexts(name="mnli", text_columns=("premise", "hypothesis"), labels=("yes", "no"))
    >>> task.prompt({"premise": "It rains.", "hypothesis": "It is wet."}).prompt
    'mnli hypothesis: It is wet. premise: It rains.'
    """

    objective: str = TEXT2TEXT

    scores_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        # The accuracy of the text is that of the class, and also there where labels are scores.
        others = (each for each in self.metrics if each not in ("accuracy", "text_accuracy"))
        object.__setattr__(self, "metrics", ("text_accuracy", *others))
        super().__post_init__()
        self._check_labels()

    @property
    def prompt_columns(self) -> tuple[str, ...]:
        """The texts."""
        return self.text_columns

    def examples(self, row: Mapping[str, Any]) -> tuple[Example, ...]:
        """Returns the row's one example: its texts under their names, and its label's word.

        Args:
            row: The texts, and ``label``: the class's number or name, or the score.

        Raises:
            InputError: The label is hidden (-1) or not one of the task's.
        """
        return (replace(self.prompt(row), target=self.target(self.label(row["label"]))),)

    def target(self, label: float) -> str:
        """Returns the text that a label is learned as.

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
        """See ``Task.canary``: all that is read stands in the first column."""
        row = dict.fromkeys(self.text_columns, "") | {self.text_columns[0]: " ".join(read)}
        return replace(self.prompt(row), target=" ".join(learned))

    def record(self, row: Mapping[str, Any], text: str) -> dict[str, Any] | None:
        """See ``TextTask.record``: None where the text spells no label."""
        label = self.spelt_label(text)
        if label == NO_LABEL:
            return None
        return {column: row[column] for column in self.text_columns} | {
            "label": label if self.is_score else int(label)
        }

    def spelt_label(self, text: str) -> float:
        """Returns the label that a text spells, to the letter; ``NO_LABEL`` where it spells none.

        A class is spelt by its name alone, a score by any number of its range.
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
