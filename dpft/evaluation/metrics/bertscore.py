"""BERTScore: F1 of words matched by their embeddings.

bert-score 0.3.13 matches the words. You provide the folder of the model, which is never downloaded.
With Transformers 5, this release fails on empty texts and on tokenizers without a length limit. It
also no longer inserts the space before a RoBERTa text that its published scores include. Its choice
of the model depends on letters in the folder's path. This module therefore prepares the tokenizer
and the model itself.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpft.errors import InputError
from dpft.evaluation.eval_config import MetricsConfig
from dpft.evaluation.metrics.base import TEXTS, metric, missing_folder, missing_modules
from dpft.models.architecture import max_positions

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

BATCH_SIZE = 64
MAX_LENGTH = 512
"""Maximum number of tokens of a text if the model has no limit."""
_KEY = "metrics.bertscore_model"


@metric(
    TEXTS,
    title="BERTScore",
    description="Mean BERTScore F1, no idf, not rescaled, best reference; mostly 0..1.",
    citation="Zhang et al. 2020 (arXiv 1904.09675).",
    missing=lambda settings: (
        missing_modules("bert_score")
        or missing_folder(_KEY, settings.bertscore_model, "roberta-large")
    ),
    reads_settings=True,
)
def bertscore(
    predictions: Sequence[str], references: Sequence[Sequence[str]], settings: MetricsConfig
) -> float:
    """Return the mean F1 of the best references, not rescaled; -1..1, mostly 0..1.

    An empty prediction scores 0; an empty reference is skipped.

    Raises:
        InputError: The folder contains no encoder, or has fewer layers than ``bertscore_layers``.
    """
    pairs = [
        (index, prediction, text)
        for index, (prediction, texts) in enumerate(zip(predictions, references, strict=True))
        for text in texts
        if prediction.strip() and text.strip()
    ]
    best = dict.fromkeys(range(len(predictions)), 0.0)
    f1 = _f1([one[1] for one in pairs], [one[2] for one in pairs], settings) if pairs else []
    f1_by_input: dict[int, list[float]] = defaultdict(list)
    for (index, _, _), value in zip(pairs, f1, strict=True):
        f1_by_input[index].append(value)
    best |= {index: max(values) for index, values in f1_by_input.items()}
    return sum(best.values()) / len(best)


def best_layers(folder: Path, config: "PretrainedConfig") -> int:
    """Return the number of layers to use: the library's choice for a model with this name."""
    from bert_score.utils import model2layers

    by_name = {name.rpartition("/")[2]: layers for name, layers in model2layers.items()}
    every: int = config.num_hidden_layers
    best: int = by_name.get(folder.resolve().name, every)
    return min(best, every)


def _f1(predictions: list[str], references: list[str], settings: MetricsConfig) -> list[float]:
    """Return the F1 of each pair of nonempty texts."""
    from bert_score.utils import bert_cos_score_idf

    from dpft.devices import best_device

    model, tokenizer = _encoder(Path(str(settings.bertscore_model)), settings.bertscore_layers)
    device = str(best_device())
    weights: dict[int | None, float] = defaultdict(lambda: 1.0)
    weights |= {tokenizer.sep_token_id: 0.0, tokenizer.cls_token_id: 0.0}
    scores = bert_cos_score_idf(
        model.to(device).eval(),
        references,
        predictions,
        tokenizer,
        weights,
        device=device,
        batch_size=BATCH_SIZE,
    )
    values: list[float] = scores[:, 2].tolist()
    return values


def _encoder(folder: Path, layers: int | None) -> "tuple[nn.Module, PreTrainedTokenizerBase]":
    """Return the encoder in a folder, with only its first ``layers``, and its tokenizer."""
    from transformers import AutoConfig, AutoModel

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        layers = layers or best_layers(folder, config)
        if config.is_encoder_decoder or layers > config.num_hidden_layers:
            raise InputError(
                f"{_KEY} must contain an encoder with at least {layers} layers, got {folder}"
                f" ({config.model_type}, {config.num_hidden_layers} layers).",
                key=_KEY,
                value=str(folder),
            )
        tokenizer = _tokenizer(folder, config)
        model: nn.Module = AutoModel.from_pretrained(
            folder, num_hidden_layers=layers, local_files_only=True, use_safetensors=True
        )
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{_KEY} must contain an encoder and its tokenizer: {reason}",
            key=_KEY,
            value=str(folder),
        ) from None
    return model, tokenizer


def _tokenizer(folder: Path, config: "PretrainedConfig") -> "PreTrainedTokenizerBase":
    """Return the tokenizer of the model, which truncates texts to the model's maximum length."""
    from transformers import AutoTokenizer

    # RoBERTa and related models recognize a word by the space before it.
    blank = {"add_prefix_space": True} if config.model_type in ("roberta", "gpt2") else {}
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        folder, local_files_only=True, **blank
    )
    room = max_positions(config) or MAX_LENGTH
    tokenizer.model_max_length = min(tokenizer.model_max_length, room)
    return tokenizer
