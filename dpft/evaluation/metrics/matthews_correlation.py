"""Matthews correlation coefficient, the metric of CoLA."""

from collections.abc import Sequence

from dpft.evaluation.metrics.accuracy import check_classes
from dpft.evaluation.metrics.base import LABELS, metric


@metric(
    LABELS,
    description="Matthews correlation of predicted and right classes; -1..1.",
    citation="Matthews 1975 (Biochimica et Biophysica Acta 405); Gorodkin 2004 for more classes.",
)
def matthews_correlation(predicted: Sequence[float], gold: Sequence[float]) -> float:
    """Return the correlation of classes, -1..1; 0 if either column contains only one class.

    Raises:
        InputError: The columns contain scores instead of classes.
    """
    from sklearn.metrics import matthews_corrcoef

    check_classes("matthews_correlation", predicted, gold)
    # With a single class, scikit-learn prints a warning before it returns 0.
    if len({*predicted, *gold}) < 2:
        return 0.0
    return float(matthews_corrcoef(gold, predicted))
