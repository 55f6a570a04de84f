"""The content of metrics.json: the scores of a run."""

from collections.abc import Mapping
from typing import Literal

from dpft.evaluation.predictions import Sample
from dpft.strict_model import Count, StrictModel, Versioned

PRIVATE_SPLIT = "computed on private held-out records, not covered by epsilon"


TRAINING_SPLIT = "computed on training records, not covered by epsilon"


PRIVATE_MARK = "private: not covered by ε"
"""Text that `dpft eval` prints with the scores of a private split."""


Stage = Literal["before", "after"]


STAGES: Mapping[Stage, str] = {
    "before": "before fine-tuning",
    "after": "after fine-tuning",
}
"""Description of each stage, in the order of a table. The scores after fine-tuning are the scores
of the released weights."""


class ConfusedClasses(StrictModel):
    """Confusion matrix; only for a public split."""

    labels: tuple[str, ...]
    """Names of the classes."""
    counts: tuple[tuple[Count, ...], ...]
    """A row for each correct class, a column for each predicted class."""


class SplitScores(StrictModel):
    """The scores of one split, or of a part of a split."""

    task: str
    """Name of the task."""
    split: str
    """Name of the split or of its part."""
    examples: Count | None = None
    """Number of distinct inputs scored; for a private split, only in private/metrics.json."""
    metrics: Mapping[str, float]
    """Value of each metric, by key. For a private split, metrics.json contains no values, or
    rounded values with `eval.publish_private_scores`."""


class StageScores(SplitScores):
    """The scores of one split at one stage of a run, with more information about the metrics."""

    stage: Stage
    """Before or after fine-tuning."""
    not_computed: Mapping[str, str]
    """Reason why a metric has no value, by key of the metric."""
    signatures: Mapping[str, str] | None = None
    """Sacrebleu's signature of each metric, which states the tokenizer and the version."""
    confusion: ConfusedClasses | None = None
    """Confusion matrix; only for a public split."""


class ScoreEntry(StageScores):
    """Scores of one split at one stage, as stored in metrics.json."""

    split_is_public: bool
    """Whether the split may be shown."""
    digits: Literal[2] | None = None
    """Significant digits of the rounded scores of a private split, if metrics.json
    contains them."""
    note: str | None = None
    """Statement that epsilon does not cover these scores; only for a private split."""
    samples: tuple[Sample, ...] | None = None
    """A few example inputs; only for a public split."""

    def _check_fields(self) -> None:
        """Reject texts of a private split, which no public file may contain."""
        if not self.split_is_public and (self.samples or self.confusion):
            raise ValueError("an entry of a private split must have no texts")

    @property
    def place(self) -> tuple[str, str, str]:
        """Task, split and stage, which identify an entry in a file."""
        return self.task, self.split, self.stage

    @property
    def is_private(self) -> bool:
        """Whether the entry has scores of private records; false if no record was scored."""
        nothing_scored = self.examples == 0 and not self.metrics
        return not self.split_is_public and not nothing_scored

    def marked(self, public: bool) -> "ScoreEntry":
        """Return the entry marked as public or private; if private, add a note and remove texts."""
        if public:
            return self.replace(split_is_public=True, note=None, digits=None)
        note = split_note(self.split)
        return self.replace(split_is_public=False, note=note, samples=None, confusion=None)


def split_note(split: str) -> str:
    """Return the note for scores of a split that is not public."""
    return TRAINING_SPLIT if split == "train" else PRIVATE_SPLIT


class Metrics(Versioned):
    """The scores of a run, or of an evaluation.

    The scores of private splits are in private/metrics.json. `dpft eval output=json` prints the
    entries of the scored splits, and marks the entries of private splits.
    """

    evaluations: tuple[ScoreEntry, ...]
    """An entry for each task, split and stage."""
