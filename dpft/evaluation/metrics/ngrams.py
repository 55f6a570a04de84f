"""N-grams of tokens, which several metrics count."""

from collections.abc import Iterator, Sequence

from dpft.evaluation.metrics.base import NotComputed
from dpft.evaluation.metrics.ptb import ptb_tokens


def ngrams(tokens: Sequence[str], n: int) -> Iterator[tuple[str, ...]]:
    """Returns every n consecutive tokens, in order; none of a shorter sequence.

    >>> list(ngrams("a b c".split(), 2))
    [('a', 'b'), ('b', 'c')]
    """
    return (tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1))


def distinct(predictions: Sequence[str], n: int) -> float:
    """Returns distinct n-grams over n-grams, each counted over all predictions, 0..1.

    Tokens are lower-cased, without punctuation.

    Args:
        predictions: Texts.
        n: Length of an n-gram.

    Raises:
        NotComputed: No prediction has n tokens.
    """
    found = [ngram for text in predictions for ngram in ngrams(ptb_tokens(text), n)]
    if not found:
        raise NotComputed(f"no prediction is {n} word{'s' * (n > 1)} long")
    return len(set(found)) / len(found)
