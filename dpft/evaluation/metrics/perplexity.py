"""Perplexity of the references under the model, per token.

The metric is one number for the whole split. Every token has the same weight, including the
end-of-text token; tokens of the prompt do not count. Perplexity depends on the tokenizer, so
compare it only between runs of one model.
"""

import math
from collections.abc import Sequence

from dpft.evaluation.metrics.base import LIKELIHOODS, LOWER, NotComputed, metric


@metric(
    LIKELIHOODS,
    description="Per-token perplexity of the references given their prompts; from 1 upwards.",
    citation="Jelinek et al. 1977 (Journal of the Acoustical Society of America 62).",
    better=LOWER,
)
def perplexity(nll_sums: Sequence[float], token_counts: Sequence[int]) -> float:
    """Return exp(total negative log-likelihood / total tokens), from 1 upwards.

    >>> round(perplexity([math.log(8.0), math.log(2.0)], [3, 1]), 12)
    2.0

    Raises:
        NotComputed: There are no tokens.
    """
    total = sum(token_counts)
    if total == 0:
        raise NotComputed("the references have no tokens")
    mean = math.fsum(nll_sums) / total
    # Above about 700 nats, exp overflows a float.
    return math.inf if mean > 700 else math.exp(mean)
