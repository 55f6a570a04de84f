"""Mean length of predictions in words, or in characters for languages without spaces."""

from collections.abc import Sequence

from dpft.evaluation.metrics.base import TEXTS, metric
from dpft.evaluation.words import spaced


@metric(
    TEXTS,
    description="Mean words of a prediction, separated by blanks; from 0 upwards.",
    citation="Gehrmann et al. 2021 (GEM, arXiv 2102.01672), section 5.",
    better=None,
    reads_language=True,
)
def mean_length(
    predictions: Sequence[str], references: Sequence[Sequence[str]], language: str | None = None
) -> float:
    """Return the mean number of words, from 0 upwards.

    >>> mean_length(["It's a pub.", ""], [["x"], ["y"]])
    1.5
    """
    return sum(len(spaced(text, language).split()) for text in predictions) / len(predictions)
