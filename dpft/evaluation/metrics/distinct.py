"""Distinct-1 and Distinct-2: the share of different n-grams among all predicted n-grams."""

from collections.abc import Sequence

from dpft.evaluation.metrics.base import TEXTS, NotComputed, metric, ngrams, ptb_tokens


@metric(
    TEXTS,
    title="Distinct-1",
    description="Number of distinct words, divided by the number of words, lower case; 0..1.",
    citation="Li et al. 2016 (arXiv 1510.03055), section 5.",
    reads_language=True,
)
def distinct_1(
    predictions: Sequence[str], references: Sequence[Sequence[str]], language: str | None = None
) -> float:
    """Return the share of distinct unigrams among the unigrams of all predictions, 0..1.

    Raises:
        NotComputed: No prediction contains a word.
    """
    return distinct_share(predictions, 1, language)


@metric(
    TEXTS,
    title="Distinct-2",
    description="Distinct bigrams over bigrams of all predictions, lower case; 0..1.",
    citation="Li et al. 2016 (arXiv 1510.03055), section 5.",
    reads_language=True,
)
def distinct_2(
    predictions: Sequence[str], references: Sequence[Sequence[str]], language: str | None = None
) -> float:
    """Return the share of distinct bigrams among the bigrams of all predictions, 0..1.

    Raises:
        NotComputed: No prediction contains two words.
    """
    return distinct_share(predictions, 2, language)


def distinct_share(predictions: Sequence[str], n: int, language: str | None = None) -> float:
    """Return the share of distinct n-grams among the n-grams of all predictions, 0..1.

    Tokens are lower-cased, and punctuation is removed.

    Raises:
        NotComputed: No prediction contains n tokens.
    """
    all_ngrams = [ngram for text in predictions for ngram in ngrams(ptb_tokens(text, language), n)]
    if not all_ngrams:
        raise NotComputed(f"no prediction is {n} word{'s' * (n > 1)} long")
    return len(set(all_ngrams)) / len(all_ngrams)
