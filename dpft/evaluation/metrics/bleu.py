"""BLEU by sacrebleu, case-insensitive, with sacrebleu's tokenizer for the task's language.

For English, this is BLEU as the E2E NLG Challenge computes it (NIST's mteval-13a). The challenge's
own scorer (tuetschek/e2e-metrics) runs mteval-v13a-sig.pl, which converts to lower case. sacrebleu
gives the same number: 65.93 for TGen on the test set, as published. Case-sensitive BLEU differs
(0.30 instead of 0.59 for one system of the challenge).

If no language is set, each character of a script without spaces is separated before 13a splits the
text. The signature calls this tokenizer ``13a+char``, because sacrebleu does not have it.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from dpft.evaluation.metrics.base import TEXTS, metric
from dpft.evaluation.words import sacrebleu_tokenizer, spaced


def signature(language: str | None) -> str:
    """Return sacrebleu's signature, without the number of references, which depends on records."""
    scorer = bleu_scorer(language)
    scorer.num_refs = None
    return str(scorer.get_signature())


@metric(
    TEXTS,
    title="BLEU",
    description="Corpus BLEU, mteval-13a tokens or those of task.language, case-insensitive, all"
    " references; 0..100.",
    citation="Papineni et al. 2002 (ACL); Post 2018 (arXiv 1804.08771).",
    reads_language=True,
    signature=signature,
)
def bleu(
    predictions: Sequence[str], references: Sequence[Sequence[str]], language: str | None = None
) -> float:
    """Return the corpus BLEU with up to 4-grams, 0..100."""
    score = bleu_scorer(language).corpus_score(list(predictions), reference_streams(references))
    return float(score.score)


def bleu_scorer(language: str | None) -> Any:
    """Return sacrebleu's ``BLEU`` with the language's tokenizer."""
    from sacrebleu.metrics.bleu import BLEU

    # force: score tokenized outputs unchanged, without a warning.
    scorer: Any = BLEU(tokenize=sacrebleu_tokenizer(language), lowercase=True, force=True)
    if language is None:
        tokenize = scorer.tokenizer
        scorer.tokenizer = lambda text: tokenize(spaced(text))
        scorer.tokenizer_signature += "+char"
    return scorer


def reference_streams(references: Sequence[Sequence[str]]) -> list[Any]:
    """Return references in sacrebleu's format: all first references, all second references, …."""
    # Fill with None instead of "", because an empty reference could be the closest in length to a
    # short prediction.
    return list(zip_longest(*references, fillvalue=None))
