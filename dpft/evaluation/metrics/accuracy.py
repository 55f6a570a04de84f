"""Accuracy: the share of examples whose predicted class is the right one."""

from collections.abc import Sequence

from dpft.errors import InputError
from dpft.evaluation.metrics.base import LABELS, metric


@metric(
    LABELS,
    description="Share of examples whose predicted class is right; 0..1.",
    citation="Wang et al. 2019 (GLUE, arXiv 1804.07461), section 3.",
)
def accuracy(predicted: Sequence[float], gold: Sequence[float]) -> float:
    """Returns the share of equal entries, 0..1.

    Raises:
        InputError: They are scores, not classes.
    """
    from sklearn.metrics import accuracy_score

    check_classes("accuracy", predicted, gold)
    return float(accuracy_score(gold, predicted))


def check_classes(name: str, *columns: Sequence[float]) -> None:
    """Refuses columns of scores for the metric called ``name``.

    Raises:
        InputError: A number is not whole.
    """
    for value in (value for column in columns for value in column):
        if value != int(value):
            raise InputError(
                f"task.metrics=[{name}] is for classes, whole numbers, got {value:g}; for scores"
                " use pearson or spearman."
            )
