"""ROUGE-2 by rouge-score; see ``dpft.evaluation.metrics.rouge``."""

from collections.abc import Sequence

from dpft.evaluation.metrics.base import TEXTS, MetricSpec, register
from dpft.evaluation.metrics.rouge import best_rouge, missing_rouge


def rouge_2(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Returns the mean F-measure of bigrams, 0..1.

    Args:
        predictions: One text per input.
        references: The texts each prediction is compared to; the best one counts.
    """
    return best_rouge("rouge2", predictions, references)


METRIC = MetricSpec(
    name="rouge_2",
    inputs=TEXTS,
    score=rouge_2,
    description="Mean ROUGE-2 F-measure by rouge-score, stemmed, best reference; 0..1.",
    citation="Lin 2004 (ACL workshop Text Summarization Branches Out).",
    missing=missing_rouge,
)
register(METRIC)
