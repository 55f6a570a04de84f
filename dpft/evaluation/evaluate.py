"""A model's, or a file's, scores on a split of a task.

One prediction is written per distinct input and compared to all of the input's references.
Metrics say what they read (texts, likelihoods); what nothing can supply, such as likelihoods for a
file of outputs, stands under ``not_computed`` with the reason: no metric is silently absent.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpft.errors import InputError
from dpft.evaluation.groups import Group, group_examples
from dpft.evaluation.metrics.base import LIKELIHOODS, TEXTS, metric_spec
from dpft.evaluation.predictions import Prediction
from dpft.evaluation.scoring import Columns, compute_metrics
from dpft.generation.decoding import DecodeConfig
from dpft.tasks.base import SPLITS, Example, Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

STAGES = ("before", "after")
"""Before or after fine-tuning."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """What is scored, ``conf/eval/default.yaml``."""

    enabled: bool = True
    """Whether training ends with an evaluation."""
    split: str = "test"
    """train, validation or test; train is always private."""
    limit: int | None = None
    """Distinct inputs to score, the split's first ones; None for all."""
    batch_size: int = 32
    """Inputs at once; memory and speed only."""
    split_is_public: bool | None = None
    """Whether the split may be shown; None: see ``eval_split_is_public``."""

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise InputError(f"eval.split must be one of {', '.join(SPLITS)}, got {self.split!r}.")
        if self.limit is not None and self.limit < 1:
            raise InputError(f"eval.limit must be at least 1, or null for all, got {self.limit}.")
        if self.batch_size < 1:
            raise InputError(f"eval.batch_size must be at least 1, got {self.batch_size}.")


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
    """Metric name to value, on the scales of DESIGN §9."""
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


def eval_split_is_public(task: Task, config: EvalConfig) -> bool:
    """Returns whether predictions and scores on the split may be shown (DESIGN §6.8).

    A training split never is. Else the user's word counts, if given; else a published task's split
    is public when it was read from where it is published, and local files are not.

    Args:
        task: The task, with its source.
        config: ``split`` and ``split_is_public``.
    """
    if config.split == "train":
        return False
    if config.split_is_public is not None:
        return config.split_is_public
    return task.is_published(config.split)


def evaluate_model(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    task: Task,
    examples: Sequence[Example],
    *,
    config: EvalConfig,
    decode: DecodeConfig,
    stage: str = "after",
    on_progress: Progress | None = None,
) -> Evaluation:
    """Returns the model's scores on the split, and its predictions.

    Args:
        model: A causal language model, on the device it shall run on; left as it was.
        tokenizer: Its tokenizer.
        task: The task the examples are of.
        examples: The split ``config.split``.
        config: How much of the split is scored.
        decode: How predictions are written.
        stage: Before or after fine-tuning.
        on_progress: Called after each batch.

    Raises:
        InputError: The split is empty, a metric is unknown, or ``decode.max_new_tokens`` leaves
            no room for a prompt.
    """
    from dpft.evaluation.outputs import ModelOutputs

    groups = _groups(task, examples, config)
    outputs = ModelOutputs(
        model=model,
        tokenizer=tokenizer,
        max_length=task.max_length,
        batch_size=config.batch_size,
    )
    kinds = {metric_spec(name).inputs for name in task.metrics}
    columns: dict[str, Columns] = {}
    predictions: tuple[Prediction, ...] = ()
    if TEXTS in kinds:
        count = _counter("predictions", len(groups), on_progress)
        predictions = _predictions(groups, outputs.texts(groups, decode, count))
        columns[TEXTS] = _text_columns(predictions)
    if LIKELIHOODS in kinds:
        scored = [example for group in groups for example in group.examples]
        count = _counter("likelihoods", len(scored), on_progress)
        columns[LIKELIHOODS] = outputs.likelihoods(scored, count)._asdict()
    return _evaluation(task, config, stage, groups, predictions, columns)


def score_predictions(
    task: Task,
    examples: Sequence[Example],
    predictions: Sequence[str],
    *,
    config: EvalConfig,
    stage: str = "after",
) -> Evaluation:
    """Returns the scores of texts that some system wrote, without a model.

    Args:
        task: The task the examples are of.
        examples: The split ``config.split``.
        predictions: One text per distinct input among the first ``config.limit``, in order of
            first occurrence; ``dpft.evaluation.predictions.read_predictions`` gives them.
        config: How much of the split is scored.
        stage: Before or after fine-tuning.

    Raises:
        InputError: The split is empty, a metric is unknown, or the numbers of predictions and
            inputs differ.
    """
    groups = _groups(task, examples, config)
    if len(predictions) != len(groups):
        raise InputError(
            f"predictions must be one for each of the {len(groups)} distinct inputs of the"
            f" {config.split} split, got {len(predictions)}."
        )
    paired = _predictions(groups, predictions)
    columns = {TEXTS: _text_columns(paired)}
    return _evaluation(task, config, stage, groups, paired, columns)


def _groups(task: Task, examples: Sequence[Example], config: EvalConfig) -> list[Group]:
    groups = group_examples(examples, limit=config.limit)
    if not groups:
        raise InputError(
            f"the {config.split} split of task {task.name} must have at least one example, got"
            " none; choose another with eval.split."
        )
    return groups


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
    task: Task,
    config: EvalConfig,
    stage: str,
    groups: Sequence[Group],
    predictions: tuple[Prediction, ...],
    columns: Mapping[str, Columns],
) -> Evaluation:
    if stage not in STAGES:
        raise ValueError(f"stage must be one of {', '.join(STAGES)}, got {stage!r}.")
    values, not_computed = compute_metrics(task.metrics, columns)
    return Evaluation(
        task=task.name,
        split=config.split,
        examples=len(groups),
        stage=stage,
        metrics=values,
        not_computed=not_computed,
        predictions=predictions,
    )
