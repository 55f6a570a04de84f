"""Scores of preference pairs: how a model ranks chosen and rejected answers.

The scores use the model's log-likelihoods of the two answers of each pair, summed over the tokens
of each answer. The scores need no reference model, so scores before and after training can be
compared.
"""

import math
from collections.abc import Sequence

from dpft.evaluation.metrics.base import PAIRS, metric

CITATION = "Rafailov et al. 2023 (arXiv 2305.18290)."


@metric(
    PAIRS,
    description="Share of pairs whose chosen answer is likelier than the rejected one; 0 to 1.",
    citation=CITATION,
)
def preference_accuracy(
    chosen: Sequence[float], rejected: Sequence[float], tokens: Sequence[int]
) -> float:
    """Return the share of pairs in which the chosen answer is more likely under the model, 0..1.

    >>> preference_accuracy([-1.0, -5.0], [-2.0, -3.0], [2, 2])
    0.5
    """
    return sum(a > b for a, b in zip(chosen, rejected, strict=True)) / len(chosen)


@metric(
    PAIRS,
    description="Mean log-likelihood of the chosen answers minus that of the rejected ones, nats.",
    citation=CITATION,
)
def preference_margin(
    chosen: Sequence[float], rejected: Sequence[float], tokens: Sequence[int]
) -> float:
    """Return the mean difference of the two log-likelihoods, in nats.

    >>> preference_margin([-1.0, -5.0], [-2.0, -3.0], [2, 2])
    -0.5
    """
    differences = (a - b for a, b in zip(chosen, rejected, strict=True))
    return math.fsum(differences) / len(chosen)


@metric(
    PAIRS,
    description="Log-likelihood of the chosen answers per token, in nats; at most 0.",
    citation=CITATION,
)
def chosen_log_likelihood(
    chosen: Sequence[float], rejected: Sequence[float], tokens: Sequence[int]
) -> float:
    """Return the mean log-likelihood per token of the chosen answers, in nats.

    >>> chosen_log_likelihood([-1.0, -5.0], [-2.0, -3.0], [2, 2])
    -1.5
    """
    return math.fsum(chosen) / sum(tokens)
