"""BLEURT: quality of a text as predicted by a trained regression model.

You provide the folder of the model, which is never downloaded. The model is a checkpoint in Hugging
Face's format: a sequence classifier with one output that reads the reference first. Other scorers
use different references and checkpoints. DART uses the first reference and BLEURT's test
checkpoint, and GEM uses the mean over references. This metric uses the best reference.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from dpft.errors import InputError
from dpft.evaluation.eval_config import MetricsConfig
from dpft.evaluation.metrics.base import TEXTS, metric, missing_folder
from dpft.models.architecture import max_positions

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

BATCH_SIZE = 64
MAX_LENGTH = 512
"""Maximum number of tokens of a pair if the model has no limit."""
_KEY = "metrics.bleurt_model"


@metric(
    TEXTS,
    title="BLEURT",
    description="Mean BLEURT, best reference; about -2..1, depending on the checkpoint.",
    citation="Sellam et al. 2020 (arXiv 2004.04696).",
    missing=lambda settings: missing_folder(_KEY, settings.bleurt_model, "Elron/bleurt-base-128"),
    reads_settings=True,
)
def bleurt(
    predictions: Sequence[str], references: Sequence[Sequence[str]], settings: MetricsConfig
) -> float:
    """Return the mean score over inputs, with the best reference of each input; about -2..1.

    Raises:
        InputError: The folder contains no sequence classifier with one output.
    """
    model, tokenizer = _load(Path(str(settings.bleurt_model)))
    pairs = [
        (text, prediction)
        for prediction, texts in zip(predictions, references, strict=True)
        for text in texts
    ]
    scores = [score for batch in _batches(pairs) for score in _scores(model, tokenizer, batch)]
    ends = list(accumulate(len(texts) for texts in references))
    best = [max(scores[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    return sum(best) / len(best)


def _load(folder: Path) -> tuple["PreTrainedModel", "PreTrainedTokenizerBase"]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from dpft.devices import best_device

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModelForSequenceClassification.from_pretrained(
            folder, local_files_only=True, use_safetensors=True
        )
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{_KEY} must contain a classifier and its tokenizer: {reason}",
            key=_KEY,
            value=str(folder),
        ) from None
    if model.config.num_labels != 1:
        raise InputError(
            f"{_KEY} must contain a classifier with one output, got {folder} with"
            f" {model.config.num_labels}.",
            key=_KEY,
            value=str(folder),
        )
    return model.to(best_device()).eval(), tokenizer


def _batches(pairs: Sequence[tuple[str, str]]) -> Iterator[Sequence[tuple[str, str]]]:
    return (pairs[start : start + BATCH_SIZE] for start in range(0, len(pairs), BATCH_SIZE))


def _scores(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", pairs: Sequence[tuple[str, str]]
) -> list[float]:
    """Return the model's output for each pair of reference and prediction."""
    import torch

    inputs = tokenizer(
        [reference for reference, _ in pairs],
        [prediction for _, prediction in pairs],
        padding=True,
        truncation=True,
        max_length=min(tokenizer.model_max_length, max_positions(model.config) or MAX_LENGTH),
        return_tensors="pt",
    )
    with torch.no_grad():
        scores: list[float] = model(**inputs.to(model.device)).logits[:, 0].tolist()
    return scores
