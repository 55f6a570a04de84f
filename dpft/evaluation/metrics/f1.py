"""F1 of binary labels, as GLUE defines it; class 1 is the positive one."""

from collections.abc import Sequence

from dpft.errors import InputError
from dpft.evaluation.metrics.base import LABELS, metric

NO_CLASS = -1
"""What a predicted text that is no class's name stands for."""


@metric(
    LABELS,
    title="F1",
    description="F1 of two classes, class 1 the positive one; 0..1.",
    citation="van Rijsbergen 1979 (Information Retrieval); Wang et al. 2019 (arXiv 1804.07461).",
)
def f1(predicted: Sequence[float], gold: Sequence[float]) -> float:
    """Return 2PR / (P + R) for precision P and recall R of class 1, 0..1.

    It is 0 where no example is of class 1 nor predicted to be. A prediction that is no class
    counts as the wrong one, as T5's own evaluation has it.

    Args:
        predicted: Class index of each example, 0 or 1, or -1 for none.
        gold: The right class index of each, 0 or 1.

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
