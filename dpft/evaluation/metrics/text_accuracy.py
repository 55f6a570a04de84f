"""Accuracy of generated text: the share of inputs whose prediction is a reference, to the letter.

As Ponomareva et al. 2022 count every task of GLUE, CoLA and STS-B too: a text that is no label is
wrong. The metric ``accuracy`` is of labels instead.
"""

from collections.abc import Sequence

from dpft.evaluation.metrics.base import TEXTS, metric


@metric(
    TEXTS,
    description="Share of inputs whose text is a reference, to the letter; 0..1.",
    citation="Ponomareva et al. 2022 (Findings of ACL), section 4; Raffel et al. 2020"
    " (arXiv 1910.10683).",
    key="accuracy",
)
def text_accuracy(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Returns the share of predictions that equal a reference, blanks at the ends aside, 0..1.

    >>> text_accuracy(["positive", "Positive", " 3.8"], [["positive"], ["positive"], ["3.8"]])
    0.6666666666666666
    """
    right = [
        prediction.strip() in {text.strip() for text in texts}
        for prediction, texts in zip(predictions, references, strict=True)
    ]
    return sum(right) / len(right)
