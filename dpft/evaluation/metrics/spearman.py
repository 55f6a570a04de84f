"""Spearman's correlation, Pearson's of the ranks; the other of STS-B's two metrics."""

import math
from collections.abc import Sequence

from dpft.evaluation.metrics.base import LABELS, MetricSpec, register
from dpft.evaluation.metrics.pearson import varies


def spearman(predicted: Sequence[float], gold: Sequence[float]) -> float:
    """Returns the correlation of ranks, -1..1; not a number where either does not vary.

    Equal scores share the mean of their ranks.

    Args:
        predicted: Score of each example.
        gold: The right score of each.
    """
    from scipy.stats import spearmanr

    if not varies(predicted) or not varies(gold):
        return math.nan
    return float(spearmanr(predicted, gold).statistic)


METRIC = MetricSpec(
    name="spearman",
    inputs=LABELS,
    score=spearman,
    description="Spearman rank correlation of predicted and right scores; -1..1.",
    citation="Spearman 1904 (American Journal of Psychology 15); Cer et al. 2017 (STS-B).",
)
register(METRIC)
