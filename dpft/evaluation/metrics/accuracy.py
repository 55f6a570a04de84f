"""Accuracy of classes, attributes, generated texts and tokens, and top-5 accuracy.

``accuracy`` compares labels. ``text_accuracy`` compares generated texts exactly, as Ponomareva et
al. 2022 do for every task of GLUE, including CoLA and STS-B. A text that is not a label is wrong.
In that paper, ``token_accuracy`` is the accuracy of pre-training. For span corruption, it covers
the hidden tokens and the sentinels between them. It depends on the tokenizer and on the hidden
spans.
"""

from collections.abc import Sequence

from dpft.errors import InputError
from dpft.evaluation.metrics.base import (
    ATTRIBUTES,
    LABELS,
    NEXT_TOKENS,
    RANKINGS,
    TEXTS,
    NotComputed,
    metric,
)


@metric(
    LABELS,
    description="Share of examples with the right predicted class; 0..1.",
    citation="Wang et al. 2019 (GLUE, arXiv 1804.07461), section 3.",
)
def accuracy(predicted: Sequence[float], gold: Sequence[float]) -> float:
    """Return the share of equal entries, 0..1.

    Raises:
        InputError: The columns contain scores instead of classes.
    """
    from sklearn.metrics import accuracy_score

    check_classes("accuracy", predicted, gold)
    return float(accuracy_score(gold, predicted))


def check_classes(name: str, *columns: Sequence[float]) -> None:
    """Reject columns of scores for the metric called ``name``.

    Raises:
        InputError: A number is not an integer.
    """
    for value in (value for column in columns for value in column):
        if value != int(value):
            raise InputError(
                f"task.metrics=[{name}] compares classes, which are whole numbers, got {value:g}.",
                key="task.metrics",
                value=value,
                hint="'task.metrics=[pearson,spearman]'",
            )


FIVE = 5


@metric(
    RANKINGS,
    title="Top-5 accuracy",
    description="Share of examples with the right class among the five likeliest; 0..1.",
    citation="Russakovsky et al. 2015 (ImageNet, arXiv 1409.0575), section 4.1.",
)
def top_5_accuracy(ranked: Sequence[Sequence[float]], gold: Sequence[float]) -> float:
    """Return the share of examples with the correct class among the first five, 0..1."""
    hits = [right in list(classes)[:FIVE] for classes, right in zip(ranked, gold, strict=True)]
    return sum(hits) / len(hits)


@metric(
    ATTRIBUTES,
    description="Share of right predictions, averaged over attributes; 0..1.",
    citation="Bu et al. 2022 (arXiv 2210.00036), Table 17.",
)
def mean_accuracy(predicted: Sequence[Sequence[float]], gold: Sequence[Sequence[float]]) -> float:
    """Return the mean over attributes of the share of equal entries, 0..1.

    Every attribute has the same number of examples, so the result is the share over all entries.
    """
    told = [
        one == right
        for ones, rights in zip(predicted, gold, strict=True)
        for one, right in zip(ones, rights, strict=True)
    ]
    return sum(told) / len(told)


@metric(
    TEXTS,
    description="Share of inputs for which the text equals a reference exactly; 0..1.",
    citation="Ponomareva et al. 2022 (Findings of ACL), section 4; Raffel et al. 2020"
    " (arXiv 1910.10683).",
    key="accuracy",
)
def text_accuracy(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return the share of predictions that equal a reference, ignoring outer spaces, 0..1.

    >>> text_accuracy(["positive", "Positive", " 3.8"], [["positive"], ["positive"], ["3.8"]])
    0.6666666666666666
    """
    right = [
        prediction.strip() in {text.strip() for text in texts}
        for prediction, texts in zip(predictions, references, strict=True)
    ]
    return sum(right) / len(right)


@metric(
    NEXT_TOKENS,
    description="Share of reference tokens that the model ranks first; 0 to 1.",
    citation="Ponomareva et al. 2022 (Findings of ACL), section 4.",
)
def token_accuracy(right_counts: Sequence[int], token_counts: Sequence[int]) -> float:
    """Return the share of correct tokens; every token of every reference has the same weight.

    >>> token_accuracy([3, 0], [4, 2])
    0.5

    Raises:
        NotComputed: There are no tokens.
    """
    total = sum(token_counts)
    if total == 0:
        raise NotComputed("the references have no tokens")
    return sum(right_counts) / total
