"""Pearson and Spearman correlation of predicted and reference scores, as for STS-B."""

import math
from collections.abc import Sequence

import numpy as np

from dpft.evaluation.metrics.base import LABELS, metric


@metric(
    LABELS,
    description="Pearson correlation of predicted and right scores; -1..1.",
    citation="Pearson 1895 (Proceedings of the Royal Society 58); Cer et al. 2017 (STS-B).",
)
def pearson(predicted: Sequence[float], gold: Sequence[float]) -> float:
    """Return the linear correlation, -1..1; NaN if either column is constant."""
    from scipy.stats import pearsonr

    if not varies(predicted) or not varies(gold):
        return math.nan
    return float(pearsonr(predicted, gold).statistic)


@metric(
    LABELS,
    description="Spearman rank correlation of predicted and right scores; -1..1.",
    citation="Spearman 1904 (American Journal of Psychology 15); Cer et al. 2017 (STS-B).",
)
def spearman(predicted: Sequence[float], gold: Sequence[float]) -> float:
    """Return the correlation of ranks, -1..1; NaN if either column is constant.

    Equal scores share the mean of their ranks.
    """
    from scipy.stats import spearmanr

    if not varies(predicted) or not varies(gold):
        return math.nan
    return float(spearmanr(predicted, gold).statistic)


def varies(scores: Sequence[float]) -> bool:
    """Return whether scores are finite and not all equal, so that a correlation is defined."""
    values = np.asarray(scores, dtype=float)
    return bool(np.isfinite(values).all() and np.unique(values).size > 1)
