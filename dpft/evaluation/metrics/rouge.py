"""ROUGE by Google's rouge-score, the best reference of each input.

Words are stemmed (Porter), as in the GEM benchmark's scorer, by which Li et al. 2022 (appendix)
scored DART; DART's own scorer has no ROUGE. GEM averages the best reference over all ways to leave
one out; here, as in rouge-score's ``score_multi``, the best of all counts, so scores of inputs with
several references are a little higher.
"""

from collections.abc import Sequence

from dpft.evaluation.metrics.needs import missing_modules
from dpft.evaluation.metrics_config import MetricsConfig


def best_rouge(kind: str, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Returns the mean over inputs of the best reference's F-measure, 0..1.

    Args:
        kind: rouge-score's name: rouge1, rouge2 or rougeL.
        predictions: One text per input.
        references: The texts each prediction is compared to, at least one.
    """
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenizers import DefaultTokenizer

    scorer = RougeScorer([kind], tokenizer=DefaultTokenizer(use_stemmer=True))
    scores = [
        scorer.score_multi(texts, prediction)[kind].fmeasure
        for prediction, texts in zip(predictions, references, strict=True)
    ]
    return float(sum(scores) / len(scores))


def missing_rouge(settings: MetricsConfig) -> str | None:
    """See ``MetricSpec.missing``."""
    return missing_modules("rouge_score.rouge_scorer")
