"""BLEU as the E2E NLG Challenge computes it: NIST's mteval-13a, case-insensitive.

The challenge's own scorer (tuetschek/e2e-metrics) runs mteval-v13a-sig.pl, which lower-cases.
sacrebleu gives the same number: 65.93 for TGen on the test set, as published. Cased BLEU does not
(0.30 in place of 0.59 for one system of the challenge).
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from dpft.evaluation.metrics.base import TEXTS, metric


@metric(
    TEXTS,
    description="Corpus BLEU, mteval-13a tokens, case-insensitive, all references; 0..100.",
    citation="Papineni et al. 2002 (ACL); Post 2018 (arXiv 1804.08771).",
)
def bleu(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Returns the corpus BLEU with up to 4-grams, 0..100."""
    from sacrebleu.metrics.bleu import BLEU

    # None, never "": an empty reference would be the closest in length to a short prediction
    streams: list[Any] = list(zip_longest(*references, fillvalue=None))
    # force: outputs that come tokenised are scored as they are, without a warning
    scorer = BLEU(tokenize="13a", lowercase=True, force=True)
    return float(scorer.corpus_score(list(predictions), streams).score)
