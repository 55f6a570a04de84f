"""Top-5 accuracy: the share of examples whose right class is among the five likeliest."""

from collections.abc import Sequence

from dpft.evaluation.metrics.base import RANKINGS, metric

FIVE = 5


@metric(
    RANKINGS,
    description="Share of examples whose right class is among the five likeliest; 0..1.",
    citation="Russakovsky et al. 2015 (ImageNet, arXiv 1409.0575), section 4.1.",
)
def top_5_accuracy(ranked: Sequence[Sequence[float]], gold: Sequence[float]) -> float:
    """Returns the share of examples whose class is among the first five, 0..1."""
    hits = [right in list(classes)[:FIVE] for classes, right in zip(ranked, gold, strict=True)]
    return sum(hits) / len(hits)
