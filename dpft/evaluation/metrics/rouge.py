"""ROUGE, by either of two scorers.

``rouge_1``, ``rouge_2`` and ``rouge_score_l`` are the scores of Google's rouge-score, with the best
reference of each input. English words are stemmed (Porter), as in the scorer of the GEM benchmark.
Li et al. 2022 (appendix) scored DART with it, because DART's own scorer has no ROUGE. GEM omits
each reference in turn and averages the scores of the best remaining reference. This metric uses the
best of all references, like ``score_multi`` of rouge-score. Inputs with several references
therefore score slightly higher.

``rouge_l`` is ROUGE-L as the E2E NLG Challenge computes it with coco-caption: Lin 2004 with beta
1.2. The computation is implemented here because the library that contains it (pycocoevalcap) needs
Java for its tokens. Google's rouge-score computes a different ROUGE-L (beta 1, the best single
reference, other tokens). With the tokens of ``dpft.evaluation.metrics.base``, the scores of the 19
challenge systems differ from the scores of pycocoevalcap with Java by at most 3e-5. For 18 systems,
the difference is at most 1e-6. TGen scores 0.68502 (published 0.6850), and Chen 0.67137 (0.6714).
"""

from collections.abc import Sequence

import regex

from dpft.evaluation.metrics.base import TEXTS, metric, missing_modules, ptb_tokens
from dpft.evaluation.words import ENGLISH, spaced

BETA = 1.2
"""Weight of recall relative to precision in ``rouge_l``, as in coco-caption."""


@metric(
    TEXTS,
    title="ROUGE-1",
    description="Mean ROUGE-1 F-measure by rouge-score, English is stemmed, best reference; 0..1.",
    citation="Lin 2004 (ACL workshop Text Summarization Branches Out).",
    missing=lambda settings: missing_modules("rouge_score.rouge_scorer"),
    reads_language=True,
)
def rouge_1(
    predictions: Sequence[str], references: Sequence[Sequence[str]], language: str | None = None
) -> float:
    """Return the mean F-measure of unigrams, 0..1."""
    return best_rouge("rouge1", predictions, references, language)


@metric(
    TEXTS,
    title="ROUGE-2",
    description="Mean ROUGE-2 F-measure by rouge-score, English is stemmed, best reference; 0..1.",
    citation="Lin 2004 (ACL workshop Text Summarization Branches Out).",
    missing=lambda settings: missing_modules("rouge_score.rouge_scorer"),
    reads_language=True,
)
def rouge_2(
    predictions: Sequence[str], references: Sequence[Sequence[str]], language: str | None = None
) -> float:
    """Return the mean F-measure of bigrams, 0..1."""
    return best_rouge("rouge2", predictions, references, language)


@metric(
    TEXTS,
    title="ROUGE-L",
    description="Mean ROUGE-L F-measure by rouge-score, English is stemmed, best reference; 0..1.",
    citation="Lin 2004 (ACL workshop Text Summarization Branches Out).",
    key="rouge_l",
    missing=lambda settings: missing_modules("rouge_score.rouge_scorer"),
    reads_language=True,
)
def rouge_score_l(
    predictions: Sequence[str], references: Sequence[Sequence[str]], language: str | None = None
) -> float:
    """Return the mean F-measure of the longest common subsequence, with beta 1, 0..1."""
    return best_rouge("rougeL", predictions, references, language)


@metric(
    TEXTS,
    title="ROUGE-L",
    description="Mean ROUGE-L F-measure, beta 1.2, maximum over references; 0..1.",
    citation="Lin 2004 (ACL workshop Text Summarization Branches Out).",
    reads_language=True,
)
def rouge_l(
    predictions: Sequence[str], references: Sequence[Sequence[str]], language: str | None = None
) -> float:
    """Return the mean ROUGE-L of the predictions, 0..1."""
    scores = [
        segment_rouge_l(
            ptb_tokens(prediction, language), [ptb_tokens(text, language) for text in texts]
        )
        for prediction, texts in zip(predictions, references, strict=True)
    ]
    return sum(scores) / len(scores)


def best_rouge(
    kind: str,
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    language: str | None = None,
) -> float:
    """Return the mean F-measure over inputs, with the best reference of each input, 0..1."""
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenizers import DefaultTokenizer

    english = DefaultTokenizer(use_stemmer=True)
    tokenizer = english if language == ENGLISH else UnicodeTokenizer(language)
    scorer = RougeScorer([kind], tokenizer=tokenizer)
    scores = [
        scorer.score_multi(texts, prediction)[kind].fmeasure
        for prediction, texts in zip(predictions, references, strict=True)
    ]
    return float(sum(scores) / len(scores))


class UnicodeTokenizer:
    """A tokenizer for rouge-score: words of letters and digits of any script, in lower case.

    If no language is set, ASCII words are stemmed as by rouge-score's own tokenizer.
    """

    def __init__(self, language: str | None) -> None:
        """Choose whether to stem ASCII words."""
        from rouge_score.tokenizers import DefaultTokenizer

        self._language = language
        self._english = DefaultTokenizer(use_stemmer=language is None)

    def tokenize(self, text: str) -> list[str]:
        """Return the words of the text, or its characters for a script without spaces."""
        words = _WORD.findall(spaced(text.lower(), self._language))
        return [
            token
            for word in words
            for token in (self._english.tokenize(word) if word.isascii() else (word,))
        ]


_WORD = regex.compile(r"[^\W_]+")


def segment_rouge_l(prediction: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return (1 + beta²)PR / (R + beta²P) for one prediction (Lin 2004, equations 2 to 4).

    Precision P and recall R are the largest over the references, each independently, as in
    coco-caption. A prediction without tokens scores 0.
    """
    common = [longest_common_subsequence(prediction, reference) for reference in references]
    if not any(common):
        return 0.0
    precision = max(common) / len(prediction)
    recall = max(n / len(r) for n, r in zip(common, references, strict=True) if r)
    return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)


def longest_common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest sequence of tokens that both texts contain in order.

    >>> longest_common_subsequence("the cat sat on the mat".split(), "the mat the cat".split())
    2
    """
    row = [0] * (len(second) + 1)
    for token in first:
        diagonal = 0
        for index, other in enumerate(second, start=1):
            above = row[index]
            row[index] = diagonal + 1 if token == other else max(above, row[index - 1])
            diagonal = above
    return row[-1]
