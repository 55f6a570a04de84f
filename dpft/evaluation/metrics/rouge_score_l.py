"""ROUGE-L by rouge-score, another number than E2E's ``rouge_l``: beta 1, the best one reference."""

from collections.abc import Sequence

from dpft.evaluation.metrics.base import TEXTS, MetricSpec, register
from dpft.evaluation.metrics.rouge import best_rouge, missing_rouge


def rouge_score_l(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Returns the mean F-measure of the longest common subsequence, 0..1.

    Args:
        predictions: One text per input.
        references: The texts each prediction is compared to; the best one counts.
    """
    return best_rouge("rougeL", predictions, references)


METRIC = MetricSpec(
    name="rouge_score_l",
    inputs=TEXTS,
    score=rouge_score_l,
    description="Mean ROUGE-L F-measure by rouge-score, stemmed, best reference; 0..1.",
    citation="Lin 2004 (ACL workshop Text Summarization Branches Out).",
    key="rouge_l",
    missing=missing_rouge,
)
register(METRIC)
