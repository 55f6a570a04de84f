"""Mean accuracy over attributes: of each the share of examples where it is told right."""

from collections.abc import Sequence

from dpft.evaluation.metrics.base import ATTRIBUTES, metric


@metric(
    ATTRIBUTES,
    description="Mean over attributes of the share of examples told right; 0..1.",
    citation="Bu et al. 2022 (arXiv 2210.00036), Table 17.",
)
def mean_accuracy(predicted: Sequence[Sequence[float]], gold: Sequence[Sequence[float]]) -> float:
    """Returns the mean over attributes of the share of equal entries, 0..1.

    Every attribute has as many examples, so that it is the share of all entries.
    """
    told = [
        one == right
        for ones, rights in zip(predicted, gold, strict=True)
        for one, right in zip(ones, rights, strict=True)
    ]
    return sum(told) / len(told)
