"""A model's, or a file's, scores on a split of a task.

One prediction is written per distinct input and compared to all of the input's references.
Metrics say what they read (texts, likelihoods); what nothing can supply, such as likelihoods for a
file of outputs, stands under ``not_computed`` with the reason: no metric is silently absent.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpft.errors import InputError
from dpft.evaluation.eval_config import EvalConfig
from dpft.evaluation.groups import Group, group_examples
from dpft.evaluation.labels import label_columns, label_input, label_predictions, read_labels
from dpft.evaluation.metrics.base import LABELS, LIKELIHOODS, TEXTS, metric_specs
from dpft.evaluation.metrics_config import MetricsConfig
from dpft.evaluation.predictions import Prediction
from dpft.evaluation.scoring import Columns, compute_metrics
from dpft.generation.decoding import DecodeConfig
from dpft.tasks.base import LabelTask, Task
from dpft.tasks.records import LabelledExample, Record, are_labelled, are_texts

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from dpft.data.encoding import Encoding
    from dpft.evaluation.outputs import ModelOutputs

STAGES = ("before", "after")
"""Before or after fine-tuning."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The scores of one split at one stage, with the predictions they come from."""

    task: str
    split: str
    examples: int
    """Distinct inputs scored."""
    stage: str
    """before or after."""
    metrics: dict[str, float]
    """Metric name to value, on the scales of metrics.json (docs/design.md, the run's folder)."""
    not_computed: dict[str, str]
    """Metric name to why it has no value."""
    predictions: tuple[Prediction, ...] = field(repr=False)
    """In the order of the split; they may be private, ``record`` leaves them out."""

    def record(self) -> dict[str, Any]:
        """Returns the entry for metrics.json."""
        return {
            "task": self.task,
            "split": self.split,
            "examples": self.examples,
            "stage": self.stage,
            "metrics": dict(self.metrics),
            "not_computed": dict(self.not_computed),
        }


def evaluate_model(
    model: "PreTrainedModel",
    encoding: "Encoding",
    task: Task,
    examples: Sequence[Record],
    *,
    config: EvalConfig,
    decode: DecodeConfig,
    metrics: MetricsConfig | None = None,
    split: str | None = None,
    stage: str = "after",
    extra_positions: int = 0,
    on_progress: Progress | None = None,
) -> Evaluation:
    """Returns the model's scores on the split, and its predictions.

    Args:
        model: A model of the encoding's kind, on the device it shall run on; left as it was.
        encoding: How the task's records become what the model reads.
        task: The task the examples are of.
        examples: The split ``config.split``, or the part of it that ``split`` names.
        config: How much of the split is scored.
        decode: How texts are written.
        metrics: Models of the metrics' own; None: no models.
        split: What the split is called; None: ``config.split``.
        stage: Before or after fine-tuning.
        extra_positions: Positions of the model that a prompt or prefix takes.
        on_progress: Called after each batch.

    Raises:
        InputError: The split is empty, a metric is unknown, or ``decode.max_new_tokens`` leaves
            no room for a prompt.
    """
    from dpft.evaluation.outputs import ModelOutputs

    name = split or config.split
    outputs = ModelOutputs(
        model=model,
        encoding=encoding,
        batch_size=config.batch_size,
        extra_positions=extra_positions,
    )
    if isinstance(task, LabelTask):
        records = _labelled(task, examples, config, name)
        scored = _model_labels(task, records, outputs, on_progress)
    else:
        groups = _groups(task, examples, config, name)
        scored = _model_texts(task, groups, outputs, decode, on_progress)
    return _evaluation(task, name, stage, scored, metrics)


def evaluate_parts(
    model: "PreTrainedModel",
    encoding: "Encoding",
    task: Task,
    parts: Mapping[str, Sequence[Record]],
    *,
    config: EvalConfig,
    decode: DecodeConfig,
    metrics: MetricsConfig | None = None,
    stage: str = "after",
    extra_positions: int = 0,
    on_progress: Progress | None = None,
) -> list[Evaluation]:
    """Returns the scores of each part of a split, by the part's name; see ``evaluate_model``."""
    return [
        evaluate_model(
            model,
            encoding,
            task,
            examples,
            config=config,
            decode=decode,
            metrics=metrics,
            split=part,
            stage=stage,
            extra_positions=extra_positions,
            on_progress=on_progress,
        )
        for part, examples in parts.items()
    ]


def inputs_of(task: Task, examples: Sequence[Record]) -> list[str]:
    """Returns a split's inputs in the words by which a file of predictions names them.

    Args:
        task: The task the examples are of.
        examples: A split, or a part of one.
    """
    if isinstance(task, LabelTask):
        assert are_labelled(examples)
        return [label_input(number, example) for number, example in enumerate(examples)]
    assert are_texts(examples)
    return [group.input for group in group_examples(examples)]


def score_predictions(
    task: Task,
    examples: Sequence[Record],
    predictions: Sequence[str],
    *,
    config: EvalConfig,
    metrics: MetricsConfig | None = None,
    split: str | None = None,
    stage: str = "after",
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
    if isinstance(task, LabelTask):
        records = _labelled(task, examples, config, name)
        _check_count(predictions, len(records), name)
        scored = _labels(task, records, read_labels(task, predictions))
    else:
        groups = _groups(task, examples, config, name)
        _check_count(predictions, len(groups), name)
        paired = _predictions(groups, predictions)
        columns = {TEXTS: _text_columns(paired)}
        scored = _Scored(count=len(groups), predictions=paired, columns=columns)
    return _evaluation(task, name, stage, scored, metrics)


@dataclass(frozen=True, kw_only=True)
class _Scored:
    """What metrics read of a split, and the predictions it comes from."""

    count: int
    """Distinct inputs."""
    predictions: tuple[Prediction, ...]
    columns: Mapping[str, Columns]
    """Kind of columns (texts, likelihoods, labels) to the columns."""


def _model_labels(
    task: LabelTask,
    records: Sequence[LabelledExample],
    outputs: "ModelOutputs",
    on_progress: Progress | None,
) -> _Scored:
    """Returns the label that the model gives each record."""
    count = _counter("predictions", len(records), on_progress)
    return _labels(task, records, [task.predicted(a) for a in outputs.answers(records, count)])


def _labels(
    task: LabelTask, records: Sequence[LabelledExample], labels: Sequence[float]
) -> _Scored:
    return _Scored(
        count=len(records),
        predictions=label_predictions(task, records, labels),
        columns={LABELS: label_columns(records, labels)},
    )


def _model_texts(
    task: Task,
    groups: Sequence[Group],
    outputs: "ModelOutputs",
    decode: DecodeConfig,
    on_progress: Progress | None,
) -> _Scored:
    """Returns the model's text for each input, and its likelihoods, as far as metrics read them."""
    kinds = {spec.inputs for spec in metric_specs(task.metrics)}
    columns: dict[str, Columns] = {}
    predictions: tuple[Prediction, ...] = ()
    if TEXTS in kinds:
        count = _counter("predictions", len(groups), on_progress)
        predictions = _predictions(groups, outputs.texts(groups, decode, count))
        columns[TEXTS] = _text_columns(predictions)
    if LIKELIHOODS in kinds:
        examples = [example for group in groups for example in group.examples]
        count = _counter("likelihoods", len(examples), on_progress)
        columns[LIKELIHOODS] = outputs.likelihoods(examples, count)._asdict()
    return _Scored(count=len(groups), predictions=predictions, columns=columns)


def _labelled(
    task: Task, examples: Sequence[Record], config: EvalConfig, split: str
) -> Sequence[LabelledExample]:
    """Returns the records to score, at least one."""
    _check_not_empty(task, examples, split)
    assert are_labelled(examples)
    return examples[: config.limit]


def _groups(task: Task, examples: Sequence[Record], config: EvalConfig, split: str) -> list[Group]:
    """Returns the distinct inputs to score, at least one."""
    _check_not_empty(task, examples, split)
    assert are_texts(examples)
    return group_examples(examples, limit=config.limit)


def _check_not_empty(task: Task, examples: Sequence[Record], split: str) -> None:
    if not examples:
        raise InputError(
            f"the {split} split of task {task.name} must have at least one example, got none;"
            " choose another with eval.split."
        )


def _check_count(predictions: Sequence[str], count: int, split: str) -> None:
    if len(predictions) != count:
        raise InputError(
            f"predictions must be one for each of the {count} distinct inputs of the {split}"
            f" split, got {len(predictions)}."
        )


def _predictions(groups: Sequence[Group], texts: Sequence[str]) -> tuple[Prediction, ...]:
    return tuple(
        Prediction(input=group.input, prediction=text, references=group.references)
        for group, text in zip(groups, texts, strict=True)
    )


def _text_columns(predictions: Sequence[Prediction]) -> Columns:
    return {
        "predictions": [prediction.prediction for prediction in predictions],
        "references": [list(prediction.references) for prediction in predictions],
    }


def _counter(task: str, total: int, on_progress: Progress | None) -> Callable[[int], None]:
    """Returns a function that adds up batch sizes and reports the sum."""
    done = 0

    def count(batch_size: int) -> None:
        nonlocal done
        done += batch_size
        if on_progress is not None:
            on_progress(task, done, total)

    return count


def _evaluation(
    task: Task, split: str, stage: str, scored: _Scored, metrics: MetricsConfig | None
) -> Evaluation:
    if stage not in STAGES:
        raise ValueError(f"stage must be one of {', '.join(STAGES)}, got {stage!r}.")
    values, not_computed = compute_metrics(task.metrics, scored.columns, metrics)
    return Evaluation(
        task=task.name,
        split=split,
        examples=scored.count,
        stage=stage,
        metrics=values,
        not_computed=not_computed,
        predictions=scored.predictions,
    )
