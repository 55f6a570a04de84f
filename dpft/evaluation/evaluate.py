"""Evaluation: scores of a model, or of a file of predictions, on a split of a task.

One prediction is written per distinct input and compared to all of the input's references.
Metrics say what they read (texts, likelihoods); what nothing can supply, such as likelihoods for a
file of outputs, stands under ``not_computed`` with the reason: no metric is silently absent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpft.errors import InputError
from dpft.evaluation.answers import ANSWERS, OnProgress, Scored, compute_metrics
from dpft.evaluation.eval_config import EvalConfig, MetricsConfig
from dpft.evaluation.predictions import sample_records
from dpft.generation.decoding import DecodeConfig
from dpft.records.scores import STAGES, ConfusedClasses, Prediction, ScoreEntry, Stage, split_note
from dpft.tasks.base import Task
from dpft.tasks.records import Record

if TYPE_CHECKING:
    from dpft.evaluation.outputs import ModelOutputs


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The scores of one split at one stage, with the predictions they come from."""

    task: str
    """Name of the task."""
    split: str
    """The split, or the part of it, that was scored."""
    examples: int
    """Distinct inputs scored."""
    stage: Stage
    """Of ``STAGES``."""
    metrics: dict[str, float]
    """Metric name to value, on the scales of metrics.json (docs/design.md, the run's folder)."""
    not_computed: dict[str, str]
    """Metric name to why it has no value."""
    confusion: ConfusedClasses | None = field(default=None, repr=False)
    """Which class was taken for which; it may be private."""
    picture: bytes | None = field(default=None, repr=False)
    """Some records that were classed wrongly, as PNG; it may be private."""
    predictions: tuple[Prediction, ...] = field(repr=False)
    """In the order of the split; they may be private, ``record`` leaves them out."""

    def record(self, *, public: bool) -> ScoreEntry:
        """Returns the entry for metrics.json; of a public split, with a few texts to be shown."""
        return ScoreEntry(
            task=self.task,
            split=self.split,
            examples=self.examples,
            stage=self.stage,
            split_is_public=public,
            metrics=self.metrics,
            not_computed=self.not_computed,
            note=None if public else split_note(self.split),
            samples=(sample_records(self.predictions) or None) if public else None,
            confusion=self.confusion if public else None,
        )


def evaluate_model(
    outputs: "ModelOutputs",
    task: Task,
    examples: Sequence[Record],
    *,
    config: EvalConfig,
    decode: DecodeConfig,
    metrics: MetricsConfig | None = None,
    split: str | None = None,
    stage: Stage = "after",
    on_progress: OnProgress | None = None,
) -> Evaluation:
    """Returns the model's scores on the split, and its predictions.

    Args:
        outputs: The model's; of several processes that have it the first one alone scores.
        task: The task the examples are of.
        examples: The split ``config.split``, or the part of it that ``split`` names.
        config: How much of the split is scored.
        decode: How texts are written.
        metrics: Models of the metrics' own; None: no models.
        split: What the split is called; None: ``config.split``.
        stage: Before or after fine-tuning.
        on_progress: Called after each batch.

    Raises:
        InputError: The split is empty, a metric is unknown, or ``decode.max_new_tokens`` leaves
            no room for a prompt.
    """
    name = split or config.split
    answers = ANSWERS[task.answers]
    chosen = answers.to_score(task, examples, config, name)
    scored = answers.of_model(task, chosen, outputs, decode, on_progress)
    if not outputs.ranks.is_first:
        scored = Scored(count=scored.count, predictions=(), columns={})
    return _evaluation(task, name, stage, scored, metrics)


def evaluate_parts(
    outputs: "ModelOutputs",
    task: Task,
    parts: Mapping[str, Sequence[Record]],
    *,
    config: EvalConfig,
    **settings: Any,
) -> list[Evaluation]:
    """Returns the scores of each part of a split, by the part's name; see ``evaluate_model``.

    Where the task says so, the mean of them follows, under the split's own name.
    """
    scored = [
        evaluate_model(outputs, task, examples, config=config, split=part, **settings)
        for part, examples in parts.items()
    ]
    if not task.averages_parts or len(scored) < 2:
        return scored
    return [*scored, mean_of(scored, config.split)]


def mean_of(evaluations: Sequence[Evaluation], split: str) -> Evaluation:
    """Returns the mean of each score over parts of a split, each part counting alike.

    A metric without a value for one of them has none.
    """
    first, others = evaluations[0], evaluations[1:]
    named = [name for name in first.metrics if all(name in each.metrics for each in others)]
    return Evaluation(
        task=first.task,
        split=split,
        examples=sum(each.examples for each in evaluations),
        stage=first.stage,
        metrics={
            name: sum(each.metrics[name] for each in evaluations) / len(evaluations)
            for name in named
        },
        not_computed={},
        predictions=(),
    )


def inputs_of(task: Task, examples: Sequence[Record]) -> list[str]:
    """Returns a split's inputs in the words by which a file of predictions names them."""
    return ANSWERS[task.answers].inputs(task, examples)


def score_predictions(
    task: Task,
    examples: Sequence[Record],
    predictions: Sequence[str],
    *,
    config: EvalConfig,
    metrics: MetricsConfig | None = None,
    split: str | None = None,
    stage: Stage = "after",
) -> Evaluation:
    """Returns the scores of texts that some system wrote, without a model.

    Args:
        task: The task the examples are of.
        examples: The split ``config.split``.
        predictions: One text per distinct input among the first ``config.limit``, in order of
            first occurrence; ``dpft.evaluation.predictions.read_predictions`` gives them. For
            labels: a class's name or number, or a score, for each record.
        config: How much of the split is scored.
        metrics: Models of the metrics' own; None: no models.
        split: What the split is called; None: ``config.split``.
        stage: Before or after fine-tuning.

    Raises:
        InputError: The split is empty, a metric is unknown, or the numbers of predictions and
            inputs differ.
    """
    name = split or config.split
    answers = ANSWERS[task.answers]
    chosen = answers.to_score(task, examples, config, name)
    if len(predictions) != len(chosen):
        raise InputError(
            f"predictions must be one for each distinct input of the {name} split, got"
            f" {len(predictions)}, which are not as many."
        )
    scored = answers.of_file(task, chosen, predictions)
    return _evaluation(task, name, stage, scored, metrics)


def _evaluation(
    task: Task, split: str, stage: Stage, scored: Scored, metrics: MetricsConfig | None
) -> Evaluation:
    if stage not in STAGES:
        raise ValueError(f"stage must be one of {', '.join(STAGES)}, got {stage!r}.")
    values, not_computed = compute_metrics(task.metrics, scored.columns, metrics)
    return Evaluation(
        task=task.name,
        split=split,
        examples=scored.count,
        stage=stage,
        metrics={**values, **scored.more},
        not_computed=not_computed,
        confusion=ConfusedClasses(
            labels=tuple(task.confusable), counts=tuple(map(tuple, scored.confusion))
        )
        if scored.confusion
        else None,
        picture=scored.picture,
        predictions=scored.predictions,
    )
