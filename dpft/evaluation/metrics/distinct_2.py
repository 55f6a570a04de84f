"""Distinct-2: how many of the pairs of words in all predictions are different ones."""

from collections.abc import Sequence

from dpft.evaluation.metrics.base import TEXTS, MetricSpec, register
from dpft.evaluation.metrics.ngrams import distinct


def distinct_2(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Returns distinct bigrams over bigrams of all predictions together, 0..1.

    Args:
        predictions: One text per input.
        references: Not read.
    """
    return distinct(predictions, 2)


METRIC = MetricSpec(
    name="distinct_2",
    inputs=TEXTS,
    score=distinct_2,
    description="Distinct bigrams over bigrams of all predictions, lower case; 0..1.",
    citation="Li et al. 2016 (arXiv 1510.03055), section 5.",
)
register(METRIC)
