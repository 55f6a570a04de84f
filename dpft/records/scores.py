"""Texts of models and their scores: predictions.jsonl, metrics.json, progress.jsonl."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from dpft.errors import StateError
from dpft.records.form import (
    AtLeastOne,
    Count,
    Limits,
    NotNegative,
    Part,
    Positive,
    Rate,
    Rule,
    Ruled,
    Rules,
    Versioned,
    as_json,
    parse,
)

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
TenOrMore = Annotated[int, Limits(minimum=10)]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a model wrote for one distinct input."""

    input: str
    """What the model read, as the split has it."""
    prediction: str
    """What it wrote."""
    references: tuple[str, ...]
    """The right answers."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """An input and what was written."""

    input: str
    """What the model read."""
    prediction: str
    """What it wrote."""
    reference: str
    """One right answer; empty where there is none."""


@dataclass(frozen=True, kw_only=True)
class ConfusedClasses:
    """Which class was taken for which; of a public split alone."""

    labels: tuple[str, ...]
    """Names of the classes."""
    counts: tuple[tuple[Count, ...], ...]
    """A row for each right class, a column for each class it was taken for."""


@dataclass(frozen=True, kw_only=True)
class ScoreEntry(Ruled):
    """Scores of one split, or of a part of it, at one stage."""

    RULES: ClassVar[Rules] = (
        Rule(
            when=Part(values={"split_is_public": False}),
            then=Part(requires=("note",), lacks=("samples", "confusion")),
            otherwise=Part(requires=("examples",), lacks=("note", "digits")),
        ),
    )
    task: str
    """The task."""
    split: str
    """The split, or its part."""
    examples: Count | None = None
    """Distinct inputs scored; of a private split in private/metrics.json alone."""
    stage: Stage
    """Before or after fine-tuning."""
    split_is_public: bool
    """Whether the split may be shown."""
    metrics: Mapping[str, float]
    """Key of a metric to its value; the scales are on the page of the metrics. Of a private split
    empty in metrics.json, or rounded where `eval.publish_private_scores` asked for it."""
    digits: Literal[2] | None = None
    """Significant digits to which the scores of a private split are rounded, where metrics.json has
    them."""
    not_computed: Mapping[str, str]
    """Key of a metric to why it has no value."""
    signatures: Mapping[str, str] | None = None
    """Key of a metric to sacrebleu's signature, which names the tokenizer and the version."""
    note: str | None = None
    """That epsilon does not cover these scores, and where they are; of a private split alone."""
    samples: tuple[Sample, ...] | None = None
    """A few inputs to read; of a public split alone."""
    confusion: ConfusedClasses | None = None
    """Which class was taken for which; of a public split alone."""

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
        """Returns the entry with whether its split is public; if not, without texts, and a note."""
        if public:
            return replace(self, split_is_public=True, note=None, digits=None)
        note = split_note(self.split)
        return replace(self, split_is_public=False, note=note, samples=None, confusion=None)


def split_note(split: str) -> str:
    """Returns what stands beside scores of a split that is not public."""
    return TRAINING_SPLIT if split == "train" else PRIVATE_SPLIT


@dataclass(frozen=True, kw_only=True)
class Metrics(Versioned):
    """The scores of a run, or of an evaluation.

    Those of private splits are in the second file. `dpft eval output=json` prints the entries of
    what it scored, and marks those of private splits.
    """

    evaluations: tuple[ScoreEntry, ...]
    """An entry for each task, split and stage."""


@dataclass(frozen=True, kw_only=True)
class TrialScore(Versioned):
    """How a trial of a search ended; private."""

    score: float | None
    """Higher is better; null: it crashed, diverged or has no score, which is the worst."""


@dataclass(frozen=True, kw_only=True)
class StepScores:
    """The scores of a split or a part of it."""

    task: str
    """Name of the task."""
    split: str
    """The split, or its part."""
    examples: Count
    """Distinct inputs scored."""
    metrics: Mapping[str, float]
    """Metric name to value, as in metrics.json."""


@dataclass(frozen=True, kw_only=True)
class ProgressLine(Versioned):
    """What is public of a run after a number of steps."""

    step: TenOrMore
    """Steps that the weights had taken."""
    since: Count | None = None
    """The step from which the seconds count, at least ten steps before; absent with them."""
    seconds: Positive | None = None
    """How long the steps since then took, without scoring; absent if fewer than ten are known."""
    learning_rate: NotNegative | None = None
    """The learning rate of the step."""
    epsilon: NotNegative | None = None
    """Upper bound of what the steps so far had spent; absent without privacy."""
    evaluations: tuple[StepScores, ...] | None = None
    """Scores of a public split, by eval.every_steps or eval.every_epochs, one for each part of
    it; before and after training the scores are in metrics.json."""


def read_progress(path: Path) -> list[ProgressLine]:
    """Return the lines of a progress record; a last line that a crash cut off is left out.

    Raises:
        StateError: The file is damaged.
    """
    if not path.exists():
        return []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        return [parse(json.loads(line), ProgressLine) for line in lines]
    except (OSError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise StateError(f"{path} is damaged: {reason}; remove it to begin a new one.") from error


def progress_text(line: ProgressLine) -> str:
    """Return a line as the file has it."""
    return json.dumps(as_json(line), sort_keys=True) + "\n"


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How texts were chosen."""

    strategy: Literal["beam", "greedy", "nucleus"]
    """How."""
    num_beams: AtLeastOne
    """Beams."""
    max_new_tokens: AtLeastOne
    """Most tokens of a text."""
    length_penalty: float
    """Of beams."""
    no_repeat_ngram_size: Count | None = None
    """So many tokens in a row are written at most once; 0: no limit."""
    repetition_penalty: Positive | None = None
    """Above 1, what a text has already becomes less likely."""
    top_p: Rate
    """Of nucleus sampling."""
    temperature: Positive
    """Of nucleus sampling."""
    seed: Count | None
    """Of nucleus sampling; null: fresh randomness."""
