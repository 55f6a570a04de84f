"""chrF2 as sacrebleu's command line computes it by default: character n-grams, case-sensitive.

The metric needs no tokenizer, so it computes scores of all languages in the same way.
"""

from collections.abc import Sequence
from typing import Any

from dpft.evaluation.metrics.base import TEXTS, metric
from dpft.evaluation.metrics.bleu import reference_streams


def signature(language: str | None) -> str:
    """Return sacrebleu's signature, without the number of references, which depends on records."""
    from sacrebleu.metrics.chrf import CHRF

    scorer: Any = CHRF()
    scorer.num_refs = None
    return str(scorer.get_signature())


@metric(
    TEXTS,
    title="chrF",
    description="Corpus chrF2, case-sensitive, best reference; 0..100.",
    citation="Popović 2015 (WMT); Post 2018 (arXiv 1804.08771).",
    signature=signature,
)
def chrf(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return the corpus chrF with n-grams of up to 6 characters and beta 2, 0..100."""
    from sacrebleu.metrics.chrf import CHRF

    return float(CHRF().corpus_score(list(predictions), reference_streams(references)).score)
