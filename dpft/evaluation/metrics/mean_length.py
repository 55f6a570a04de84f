"""Mean length: words of a prediction, as blanks part them."""

from collections.abc import Sequence

from dpft.evaluation.metrics.base import TEXTS, metric


@metric(
    TEXTS,
    description="Mean words of a prediction, parted by blanks; from 0 upwards.",
    citation="Gehrmann et al. 2021 (GEM, arXiv 2102.01672), section 5.",
    better=None,
)
def mean_length(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Returns the mean number of words, from 0 upwards.

    >>> mean_length(["It's a pub.", ""], [["x"], ["y"]])
    1.5
    """
    return sum(len(text.split()) for text in predictions) / len(predictions)
