"""Share of the references' tokens that are the model's first choice, given the tokens before.

What Ponomareva et al. 2022 call accuracy of pre-training: of span corruption, of the hidden tokens
and the sentinels between them. It depends on the tokenizer and on what is hidden.
"""

from collections.abc import Sequence

from dpft.evaluation.metrics.base import NEXT_TOKENS, NotComputed, metric


@metric(
    NEXT_TOKENS,
    description="Share of the references' tokens that are the model's likeliest; 0 to 1.",
    citation="Ponomareva et al. 2022 (Findings of ACL), section 4.",
)
def token_accuracy(right_counts: Sequence[int], token_counts: Sequence[int]) -> float:
    """Returns the share of right tokens, every token of every reference counting the same.

    >>> token_accuracy([3, 0], [4, 2])
    0.5

    Raises:
        NotComputed: There is no token.
    """
    total = sum(token_counts)
    if total == 0:
        raise NotComputed("the references have no tokens")
    return sum(right_counts) / total
