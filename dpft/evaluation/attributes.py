"""Attributes as evaluation sees them: of each record those told, and those there."""

from collections.abc import Sequence
from operator import eq
from typing import TYPE_CHECKING

from dpft.errors import InputError
from dpft.evaluation.labels import label_input
from dpft.evaluation.metrics.base import ATTRIBUTES
from dpft.evaluation.scored import OnProgress, Scored, counter
from dpft.records.scores import Prediction
from dpft.tasks.image_records import LabeledImage
from dpft.tasks.image_task import ImageTask

if TYPE_CHECKING:
    from dpft.evaluation.outputs import ModelOutputs

LIKELY = 0.5
Told = Sequence[Sequence[float]]
"""0 or 1 for each attribute of each record."""


def model_attributes(
    task: ImageTask,
    records: Sequence[LabeledImage],
    outputs: "ModelOutputs",
    on_progress: OnProgress | None = None,
) -> Scored:
    """Returns the attributes that the model tells of each record: those likelier than not."""
    count = counter("predictions", len(records), on_progress)
    answers = outputs.answers(records, count)
    return scored_attributes(task, records, [[float(p > LIKELY) for p in one] for one in answers])


def scored_attributes(task: ImageTask, records: Sequence[LabeledImage], told: Told) -> Scored:
    """Returns attributes of any origin beside the right ones, and the accuracy of each."""
    gold = [record.answer for record in records]
    return Scored(
        count=len(records),
        predictions=tuple(
            Prediction(
                input=label_input(number, record),
                prediction=_named(task, one),
                references=(_named(task, record.answer),),
            )
            for number, (record, one) in enumerate(zip(records, told, strict=True))
        ),
        columns={ATTRIBUTES: {"predicted": list(told), "gold": gold}},
        more={
            f"accuracy_{name}": _share_right([one[at] for one in told], [one[at] for one in gold])
            for at, name in enumerate(task.classes)
        },
    )


def read_attributes(task: ImageTask, texts: Sequence[str]) -> list[list[float]]:
    """Returns the attributes that the texts of a file of predictions name, a comma between them.

    Raises:
        InputError: One names what is no attribute; it is named by its number, not quoted.
    """
    told = []
    for number, text in enumerate(texts, start=1):
        names = {name.strip() for name in text.split(",") if name.strip()}
        if not names <= set(task.classes):
            raise InputError(
                f"predictions, record {number}: it must name attributes of the task, such as"
                f" {task.classes[0]}, a comma between them."
            )
        told.append([float(name in names) for name in task.classes])
    return told


def _share_right(told: Sequence[float], gold: Sequence[float]) -> float:
    return float(sum(map(eq, told, gold)) / len(gold))


def _named(task: ImageTask, told: Sequence[float]) -> str:
    return ", ".join(name for name, one in zip(task.classes, told, strict=True) if one)
