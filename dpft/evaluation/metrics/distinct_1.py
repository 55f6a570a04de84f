"""Distinct-1: how many of the words in all predictions are different ones."""

from collections.abc import Sequence

from dpft.evaluation.metrics.base import TEXTS, MetricSpec, register
from dpft.evaluation.metrics.ngrams import distinct


def distinct_1(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Returns distinct unigrams over unigrams of all predictions together, 0..1.

    Args:
        predictions: One text per input.
        references: Not read.
    """
    return distinct(predictions, 1)


METRIC = MetricSpec(
    name="distinct_1",
    inputs=TEXTS,
    score=distinct_1,
    description="Distinct words over words of all predictions, lower case; 0..1.",
    citation="Li et al. 2016 (arXiv 1510.03055), section 5.",
)
register(METRIC)
