"""NIST-5 as the E2E NLG Challenge computes it: NIST's mteval-13a, case-insensitive.

The computation is implemented here because no library reproduces the challenge's number (TGen
8.6094). NLTK uses only the best reference and gives 7.13. The length penalty compares the length of
the predictions with the mean length of all references of the corpus, times the number of inputs.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence

from dpft.evaluation.metrics.base import TEXTS, metric, ngrams
from dpft.evaluation.metrics.bleu import bleu_scorer

MAX_N = 5
BETA = math.log(2) / math.log(1.5) ** 2
"""Coefficient that makes the penalty 1/2 if predictions are 2/3 as long as the references."""

Tokens = list[str]
Ngram = tuple[str, ...]


@metric(
    TEXTS,
    title="NIST",
    description="Corpus NIST-5, mteval-13a tokens or those of task.language, case-insensitive, all"
    " references; from 0.",
    citation="Doddington 2002 (HLT).",
    reads_language=True,
)
def nist(
    predictions: Sequence[str], references: Sequence[Sequence[str]], language: str | None = None
) -> float:
    """Return the corpus NIST with up to 5-grams, from 0 upwards."""
    tokenize: Callable[[str], str] = bleu_scorer(language).tokenizer
    written = [tokenize(text.lower()).split() for text in predictions]
    compared = [[tokenize(text.lower()).split() for text in texts] for texts in references]
    orders = range(1, MAX_N + 1)
    all_tokens = [tokens for texts in compared for tokens in texts]
    counts = Counter(ngram for tokens in all_tokens for n in orders for ngram in ngrams(tokens, n))
    # The count of the empty n-gram is the number of words (Doddington 2002, eq. 2).
    counts[()] = sum(map(len, all_tokens))
    information = {key: math.log2(counts[key[:-1]] / counts[key]) for key in counts if key}
    total = math.fsum(information_gained(written, compared, information, n) for n in orders)
    return total * length_penalty(written, compared)


def information_gained(
    predictions: Sequence[Tokens],
    references: Sequence[Sequence[Tokens]],
    information: dict[Ngram, float],
    n: int,
) -> float:
    """Return the information of matching n-grams, divided by the number of predicted n-grams.

    An n-gram matches at most as often as it occurs in the reference that contains it most often.
    """
    gained, total = 0.0, 0
    for tokens, texts in zip(predictions, references, strict=True):
        predicted = Counter(ngrams(tokens, n))
        most: Counter[Ngram] = Counter()
        for text in texts:
            most |= Counter(ngrams(text, n))
        gained += math.fsum(
            count * information[ngram] for ngram, count in (predicted & most).items()
        )
        total += predicted.total()
    return gained / total if total else 0.0


def length_penalty(predictions: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> float:
    """Return exp(-BETA ln²(min(1, length / mean reference length))), 0..1."""
    lengths = [len(text) for texts in references for text in texts]
    expected = sum(lengths) * len(references) / len(lengths)
    ratio = min(1.0, sum(map(len, predictions)) / expected) if expected else 0.0
    return math.exp(-BETA * math.log(ratio) ** 2) if ratio else 0.0
