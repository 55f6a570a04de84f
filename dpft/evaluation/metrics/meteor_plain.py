"""METEOR 1.5 as the WebNLG and DART scorers run it: on plain text, with ``-norm``.

E2E's ``meteor`` drops punctuation first. Here all references count, as for WebNLG; DART's script
(Yale-LILY/dart, evaluation/prepare_files.py) hands METEOR the first reference only.
"""

from collections.abc import Sequence

from dpft.evaluation.metrics.base import TEXTS, MetricSpec, register
from dpft.evaluation.metrics.meteor import corpus_score, joined, missing_meteor


def meteor_plain(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Returns METEOR of the corpus, 0..1.

    Args:
        predictions: One text per input.
        references: The texts each prediction is compared to, at least one.

    Raises:
        NotComputed: The Java program cannot be started or breaks off.
    """
    pairs = zip(predictions, references, strict=True)
    return corpus_score([plain_line(prediction, texts) for prediction, texts in pairs])


def plain_line(prediction: str, references: Sequence[str]) -> str:
    """Returns the program's line for one input; blanks and line ends become one blank each.

    >>> plain_line("A pub|||bar.", ["A  pub."])
    'SCORE ||| A pub. ||| A pub bar.'
    """
    texts = (*references, prediction)
    return joined([" ".join(text.replace("|||", " ").split()) for text in texts])


METRIC = MetricSpec(
    name="meteor_plain",
    inputs=TEXTS,
    score=meteor_plain,
    description="METEOR 1.5 of the corpus on plain text, English, all references; 0..1.",
    citation="Denkowski and Lavie 2014 (WMT).",
    key="meteor",
    missing=missing_meteor,
)
register(METRIC)
