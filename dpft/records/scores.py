"""What models wrote and how it scored: predictions.jsonl, metrics.json, scores_by_step.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from dpft.records.form import Limits
from dpft.records.values import Count, NotNegative, Versioned

TenSteps = Annotated[int, Limits(minimum=10, multiple_of=10)]


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
class Confusion:
    """Which class was taken for which; of a public split alone."""

    labels: tuple[str, ...]
    """Names of the classes."""
    counts: tuple[tuple[Count, ...], ...]
    """A row for each right class, a column for each class it was taken for."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores of one split, or of a part of it, at one stage."""

    KEYWORDS: ClassVar[Mapping[str, Any]] = {
        "if": {"properties": {"split_is_public": {"const": False}}},
        "then": {"required": ["note"], "properties": {"samples": False, "confusion": False}},
        "else": {"required": ["examples"], "properties": {"note": False, "digits": False}},
    }
    task: str
    """The task."""
    split: str
    """The split, or its part."""
    examples: Count | None = None
    """Distinct inputs scored; of a private split in private/metrics.json alone."""
    stage: Literal["before", "after"]
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
    note: str | None = None
    """That epsilon does not cover these scores, and where they are; of a private split alone."""
    samples: tuple[Sample, ...] | None = None
    """A few inputs to read; of a public split alone."""
    confusion: Confusion | None = None
    """Which class was taken for which; of a public split alone."""

    def __post_init__(self) -> None:
        if self.split_is_public:
            kind, needs, lacks = "public", ("examples",), ("note", "digits")
        else:
            kind, needs, lacks = "private", ("note",), ("samples", "confusion")
        if any(getattr(self, name) is None for name in needs) or any(
            getattr(self, name) is not None for name in lacks
        ):
            raise ValueError(
                f"an entry of a {kind} split must have {needs[0]}, and no {' and no '.join(lacks)}"
            )


@dataclass(frozen=True, kw_only=True)
class Metrics(Versioned):
    """The scores of a run, or of an evaluation.

    Those of private splits are in the second file; of the first, `dpft eval output=json` prints the
    entries of what it scored.
    """

    evaluations: tuple[Evaluation, ...]
    """An entry for each task, split and stage."""


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
class StepPoint:
    """The scores after a number of steps."""

    step: TenSteps
    """Steps that the weights had taken."""
    epsilon: NotNegative | None = None
    """Upper bound of what the steps so far had spent; absent without privacy."""
    accountant: str | None = None
    """Whose bound it is; absent without privacy."""
    evaluations: tuple[StepScores, ...]
    """One for each part of the split."""


@dataclass(frozen=True, kw_only=True)
class ScoresByStep(Versioned):
    """Scores of a public split while the run trained, by eval.every_steps or eval.every_epochs."""

    every: TenSteps
    """Steps between two points, a multiple of ten."""
    points: tuple[StepPoint, ...]
    """By step; before and after training the scores are in metrics.json."""
