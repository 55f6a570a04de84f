"""F1 of the words of a reply, as ParlAI computes it for dialogue.

ParlAI's ``normalize_answer`` converts text to lower case, replaces punctuation with spaces and
removes the articles a, an and the. For example, "It's the end." becomes "it s end".
"""

import re
from collections import Counter
from collections.abc import Sequence

from dpft.evaluation.metrics.base import TEXTS, metric
from dpft.evaluation.words import ENGLISH, without_marks

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = re.compile(r"[!\"#$%&()*+,\-./:;<=>?@\[\]\\^`{|}~_']")


@metric(
    TEXTS,
    title="Token F1",
    description="Mean F1 of words, ParlAI's normalization, best reference; 0..1.",
    citation="Miller et al. 2017 (ParlAI, arXiv 1705.06476), parlai/core/metrics.py.",
    key="f1",
    reads_language=True,
)
def token_f1(
    predictions: Sequence[str], references: Sequence[Sequence[str]], language: str | None = None
) -> float:
    """Return the mean F1 over inputs, with the best reference of each input; 0..1."""
    scores = [
        max(pair_f1(words(prediction, language), words(text, language)) for text in texts)
        for prediction, texts in zip(predictions, references, strict=True)
    ]
    return sum(scores) / len(scores)


def words(text: str, language: str | None = None) -> list[str]:
    """Return the words that ParlAI compares.

    Articles are removed for English, and if no language is set.

    >>> words("The end of an era, isn't it?")
    ['end', 'of', 'era', 'isn', 't', 'it']
    """
    text = _PUNCTUATION.sub(" ", without_marks(text.lower(), language))
    if language in (None, ENGLISH):
        text = _ARTICLE.sub(" ", text)
    return text.split()


def pair_f1(prediction: Sequence[str], reference: Sequence[str]) -> float:
    """Return 2PR / (P + R) of the common words; repeated words count as often as in both texts."""
    common = sum((Counter(prediction) & Counter(reference)).values())
    return 2 * common / (len(prediction) + len(reference)) if common else 0.0
