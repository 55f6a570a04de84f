"""F1 of binary labels, as GLUE defines it; class 1 is the positive class."""

from collections.abc import Sequence

from dpft.errors import InputError
from dpft.evaluation.metrics.base import LABELS, metric

NO_CLASS = -1
"""Value for a predicted text that is not the name of a class."""


@metric(
    LABELS,
    title="F1",
    description="F1 of two classes, class 1 the positive one; 0..1.",
    citation="van Rijsbergen 1979 (Information Retrieval); Wang et al. 2019 (arXiv 1804.07461).",
)
def f1(predicted: Sequence[float], gold: Sequence[float]) -> float:
    """Return 2PR / (P + R) for precision P and recall R of class 1, 0..1.

    F1 is 0 if no example has or is predicted to have class 1. A prediction that is not a class
    counts as the wrong class, as in T5's own evaluation.

    Args:
        predicted: Class index of each example, 0 or 1, or -1 if the prediction is not a class.
        gold: Correct class index of each example, 0 or 1.

    Raises:
        InputError: There are other classes.
    """
    from sklearn.metrics import f1_score

    predicted = [
        1 - right if label == NO_CLASS else label
        for label, right in zip(predicted, gold, strict=True)
    ]
    others = sorted({*predicted, *gold} - {0, 1})
    if others:
        raise InputError(
            f"task.metrics=[f1] needs two classes, 0 and 1, got class {others[0]:g}.",
            key="task.metrics",
            value=others[0],
            hint="'task.metrics=[accuracy]'",
        )
    return float(f1_score(gold, predicted, labels=[1], average="macro", zero_division=0.0))
