"""The content of metrics.json: the scores of a run."""

from collections.abc import Mapping
from typing import Literal

from dpft.evaluation.predictions import Sample
from dpft.strict_model import Count, StrictModel, Versioned

PRIVATE_SPLIT = "computed on private held-out records, not covered by epsilon"


TRAINING_SPLIT = "computed on training records, not covered by epsilon"


PRIVATE_MARK = "private: not covered by ε"
"""What `dpft eval` prints with the scores of a private split."""


Stage = Literal["before", "after"]


STAGES: Mapping[Stage, str] = {
    "before": "before fine-tuning",
    "after": "after fine-tuning",
}
"""In the order of a table, and in words; those after fine-tuning are of the released weights."""


class ConfusedClasses(StrictModel):
    """Which class was taken for which; of a public split alone."""

    labels: tuple[str, ...]
    """Names of the classes."""
    counts: tuple[tuple[Count, ...], ...]
    """A row for each right class, a column for each class it was taken for."""


class SplitScores(StrictModel):
    """The scores of one split, or of a part of it."""

    task: str
    """The task."""
    split: str
    """The split, or its part."""
    examples: Count | None = None
    """Distinct inputs scored; of a private split in private/metrics.json alone."""
    metrics: Mapping[str, float]
    """Key of a metric to its value; the scales are on the page of the metrics. Of a private split
    empty in metrics.json, or rounded where `eval.publish_private_scores` asked for it."""


class StageScores(SplitScores):
    """The same at one stage of a run, with what metrics say beside their values."""

    stage: Stage
    """Before or after fine-tuning."""
    not_computed: Mapping[str, str]
    """Key of a metric to why it has no value."""
    signatures: Mapping[str, str] | None = None
    """Key of a metric to sacrebleu's signature, which names the tokenizer and the version."""
    confusion: ConfusedClasses | None = None
    """Which class was taken for which; of a public split alone."""


class ScoreEntry(StageScores):
    """Scores of one split at one stage, as metrics.json has them."""

    split_is_public: bool
    """Whether the split may be shown."""
    digits: Literal[2] | None = None
    """Significant digits to which the scores of a private split are rounded, where metrics.json has
    them."""
    note: str | None = None
    """That epsilon does not cover these scores, and where they are; of a private split alone."""
    samples: tuple[Sample, ...] | None = None
    """A few inputs to read; of a public split alone."""

    def _check_fields(self) -> None:
        """Reject texts of a private split, which no public file may contain."""
        if not self.split_is_public and (self.samples or self.confusion):
            raise ValueError("an entry of a private split must have no texts")

    @property
    def place(self) -> tuple[str, str, str]:
        """Task, split and stage, of which a file has one entry."""
        return self.task, self.split, self.stage

    @property
    def is_private(self) -> bool:
        """Whether it is of private records; one that says why none was scored is not."""
        nothing_scored = self.examples == 0 and not self.metrics
        return not self.split_is_public and not nothing_scored

    def marked(self, public: bool) -> "ScoreEntry":
        """Return the entry with whether its split is public; if not, without texts, and a note."""
        if public:
            return self.replace(split_is_public=True, note=None, digits=None)
        note = split_note(self.split)
        return self.replace(split_is_public=False, note=note, samples=None, confusion=None)


def split_note(split: str) -> str:
    """Return what stands beside scores of a split that is not public."""
    return TRAINING_SPLIT if split == "train" else PRIVATE_SPLIT


class Metrics(Versioned):
    """The scores of a run, or of an evaluation.

    Those of private splits are in the second file. `dpft eval output=json` prints the entries of
    what it scored, and marks those of private splits.
    """

    evaluations: tuple[ScoreEntry, ...]
    """An entry for each task, split and stage."""
