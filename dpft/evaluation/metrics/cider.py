"""CIDEr as the E2E NLG Challenge computes it: coco-caption with Penn Treebank tokens.

The library's own tokenizer needs Java and writes texts to its folder in site-packages. With the
tokens of ``dpft.evaluation.metrics.base``, the scores of the 19 challenge systems differ by at most
9e-4. TGen scores 2.2341 (published 2.2338). Scores are the same with and without Java.
"""

from collections.abc import Sequence

from dpft.evaluation.metrics.base import TEXTS, NotComputed, metric, missing_modules, ptb_tokens


@metric(
    TEXTS,
    title="CIDEr",
    description="Mean CIDEr, coco-caption's, all references; 0..10.",
    citation="Vedantam et al. 2015 (arXiv 1411.5726).",
    missing=lambda settings: missing_modules("pycocoevalcap.cider.cider"),
    reads_language=True,
)
def cider(
    predictions: Sequence[str], references: Sequence[Sequence[str]], language: str | None = None
) -> float:
    """Return the mean CIDEr of the predictions, 0..10; 0 for a single input.

    Raises:
        NotComputed: No reference contains a word.
    """
    from pycocoevalcap.cider.cider import Cider

    compared = [[" ".join(ptb_tokens(text, language)) for text in texts] for texts in references]
    if not any(map(any, compared)):
        raise NotComputed("no reference has a word")
    written = [[" ".join(ptb_tokens(text, language))] for text in predictions]
    score, _ = Cider().compute_score(dict(enumerate(compared)), dict(enumerate(written)))
    return float(score)
