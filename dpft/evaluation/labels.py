"""Labels as evaluation sees them: a prediction for each record, and the columns metrics read.

Unlike texts, labels are not grouped: two records of the same text are scored apart.
"""

from collections.abc import Sequence

from dpft.errors import InputError
from dpft.evaluation.scoring import Columns
from dpft.records.scores import Prediction
from dpft.tasks.base import LabelTask
from dpft.tasks.image_records import LabeledImage
from dpft.tasks.records import LabeledExample


def label_predictions(
    task: LabelTask, examples: Sequence[LabeledExample], labels: Sequence[float]
) -> tuple[Prediction, ...]:
    """Returns the labels of the records, spelt out, beside the true ones."""
    return tuple(
        Prediction(
            input=label_input(number, example),
            prediction=task.label_text(label),
            references=(task.label_text(example.label),),
        )
        for number, (example, label) in enumerate(zip(examples, labels, strict=True))
    )


def label_columns(examples: Sequence[LabeledExample], labels: Sequence[float]) -> Columns:
    """Returns the columns that metrics of labels read."""
    return {"predicted": list(labels), "gold": [example.label for example in examples]}


def read_labels(task: LabelTask, predictions: Sequence[str]) -> list[float]:
    """Returns the labels that the texts of a file of predictions spell.

    Raises:
        InputError: One spells none; it is named by its number, not quoted.
    """
    labels = []
    for number, text in enumerate(predictions, start=1):
        try:
            labels.append(task.prediction(text.strip()))
        except InputError as error:
            raise InputError(f"predictions, record {number}: {error}") from None
    return labels


def label_input(number: int, example: LabeledExample | LabeledImage) -> str:
    """Returns a record in words; its number tells it from others of the same text."""
    return f"{number}: {example.shown}"
