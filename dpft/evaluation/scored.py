"""What is compared on a split: a prediction for each input, and the columns metrics read.

The predictions come from a model or from a file; for texts there is one for each distinct input,
for labels one for each record.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dpft.errors import InputError
from dpft.evaluation.eval_config import EvalConfig
from dpft.evaluation.groups import Group, group_examples
from dpft.evaluation.labels import label_columns, label_predictions
from dpft.evaluation.metrics.base import (
    LABELS,
    LIKELIHOODS,
    NEXT_TOKENS,
    RANKINGS,
    TEXTS,
    metric_specs,
)
from dpft.evaluation.scoring import Columns
from dpft.generation.decoding import DecodeConfig
from dpft.records.scores import Prediction
from dpft.tasks.base import LabelTask, Task, TextTask
from dpft.tasks.records import LabeledExample, Record, are_texts

if TYPE_CHECKING:
    from dpft.evaluation.outputs import ModelOutputs

MOST_SHOWN = 40
"""Wrongly classed records in a picture."""

OnProgress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What metrics read of a split, and the predictions it comes from."""

    count: int
    """Distinct inputs, or records with labels."""
    predictions: tuple[Prediction, ...] = field(repr=False)
    """In the order of the split; none where no metric reads texts."""
    columns: Mapping[str, Columns] = field(repr=False)
    """Kind of columns (texts, likelihoods, labels) to the columns; kinds nothing gave are absent.
    """
    confusion: Sequence[Sequence[int]] = field(default=(), repr=False)
    """How many records of each class, a row each, were taken for each class."""
    picture: bytes | None = field(default=None, repr=False)
    """Some records that were classed wrongly, as PNG."""
    more: Mapping[str, float] = field(default_factory=dict)
    """Scores beside those of the metrics, such as each attribute's."""


def groups_to_score(
    task: Task, examples: Sequence[Record], config: EvalConfig, split: str
) -> list[Group]:
    """Returns the distinct inputs of a split that are scored, ``config.limit`` at most.

    Raises:
        InputError: The split is empty.
    """
    check_not_empty(task, examples, split)
    assert are_texts(examples)
    return group_examples(examples, limit=config.limit)


def scored_texts(task: Task, groups: Sequence[Group], texts: Sequence[str]) -> Scored:
    """Returns texts of any origin beside the references.

    Args:
        task: That the texts answer.
        groups: The distinct inputs.
        texts: One for each of them.
    """
    predictions = _predictions(groups, texts)
    columns = _text_columns(task, predictions)
    return Scored(count=len(groups), predictions=predictions, columns=columns)


def scored_labels(
    task: LabelTask, records: Sequence[LabeledExample], labels: Sequence[float]
) -> Scored:
    """Returns labels of any origin, one for each record, beside the true ones."""
    return Scored(
        count=len(records),
        predictions=label_predictions(task, records, labels),
        columns={LABELS: label_columns(records, labels)},
    )


def model_texts(
    task: Task,
    groups: Sequence[Group],
    outputs: "ModelOutputs",
    decode: DecodeConfig,
    on_progress: OnProgress | None = None,
) -> Scored:
    """Returns the model's text for each input, and its likelihoods, as far as metrics read them."""
    kinds = {spec.inputs for spec in metric_specs(task.metrics)}
    columns: dict[str, Columns] = {}
    predictions: tuple[Prediction, ...] = ()
    if kinds & {TEXTS, LABELS}:
        count = counter("predictions", len(groups), on_progress)
        predictions = _predictions(groups, outputs.texts(groups, decode, count))
        columns |= _text_columns(task, predictions)
    if LIKELIHOODS in kinds:
        examples = [example for group in groups for example in group.examples]
        count = counter("likelihoods", len(examples), on_progress)
        columns[LIKELIHOODS] = outputs.likelihoods(examples, count)._asdict()
    if NEXT_TOKENS in kinds:
        examples = [example for group in groups for example in group.examples]
        count = counter("next tokens", len(examples), on_progress)
        columns[NEXT_TOKENS] = outputs.next_tokens(examples, count)._asdict()
    return Scored(count=len(groups), predictions=predictions, columns=columns)


def model_labels(
    task: LabelTask,
    records: Sequence[LabeledExample],
    outputs: "ModelOutputs",
    on_progress: OnProgress | None = None,
) -> Scored:
    """Returns the label that the model gives each record."""
    count = counter("predictions", len(records), on_progress)
    answers = outputs.answers(records, count)
    labels = [task.predicted(answer) for answer in answers]
    scored = scored_labels(task, records, labels)
    if task.confusable:
        counts, picture = confused(task, records, labels, outputs)
        scored = replace(scored, confusion=counts, picture=picture)
    if RANKINGS not in {spec.inputs for spec in metric_specs(task.metrics)}:
        return scored
    ranked = [sorted(range(len(one)), key=lambda k: -one[k]) for one in answers]  # noqa: B023
    rankings: Columns = {"ranked": ranked, "gold": [record.label for record in records]}
    return replace(scored, columns={**scored.columns, RANKINGS: rankings})


def confused(
    task: Task, records: Sequence[Any], labels: Sequence[float], outputs: "ModelOutputs"
) -> tuple[list[list[int]], bytes | None]:
    """Returns which class was taken for which, and some wrongly classed records as a picture.

    Args:
        task: Its ``confusable`` classes are counted.
        records: With their right labels.
        labels: Those a model gave them.
        outputs: The model's, whose encoding reads the records.
    """
    counts = [[0] * len(task.confusable) for _ in task.confusable]
    wrong: list[Any] = []
    for record, label in zip(records, labels, strict=True):
        counts[int(record.label)][int(label)] += 1
        if record.label != label and len(wrong) < MOST_SHOWN:
            wrong.append(record)
    return counts, outputs.encoding.picture(wrong)


def check_not_empty(task: Task, examples: Sequence[Record], split: str) -> None:
    """Refuses a split without records.

    Raises:
        InputError: It is empty.
    """
    if not examples:
        raise InputError(
            f"the {split} split of task {task.name} must have at least one example, got none;"
            " choose another with eval.split."
        )


def _predictions(groups: Sequence[Group], texts: Sequence[str]) -> tuple[Prediction, ...]:
    return tuple(
        Prediction(input=group.input, prediction=text, references=group.references)
        for group, text in zip(groups, texts, strict=True)
    )


def _text_columns(task: Task, predictions: Sequence[Prediction]) -> dict[str, Columns]:
    """Returns the texts and, where the task's answers are labels in words, the labels."""
    texts = [prediction.prediction for prediction in predictions]
    columns: dict[str, Columns] = {
        TEXTS: {
            "predictions": texts,
            "references": [list(prediction.references) for prediction in predictions],
        }
    }
    assert isinstance(task, TextTask)
    predicted = task.spelt_labels(texts)
    gold = task.spelt_labels([prediction.references[0] for prediction in predictions])
    if predicted is not None and gold is not None:
        columns[LABELS] = {"predicted": predicted, "gold": gold}
    return columns


def counter(task: str, total: int, on_progress: OnProgress | None) -> Callable[[int], None]:
    """Returns a function that adds up batch sizes and reports the sum."""
    done = 0

    def count(batch_size: int) -> None:
        nonlocal done
        done = min(total, done + batch_size)
        if on_progress is not None:
            on_progress(task, done, total)

    return count
