"""Greedy continuations of token prefixes, as audits ask for them: at most so many tokens each.

It stands beside ``decoding`` because an answer has a prompt and ends where the model ends it, and
here a text is cut anywhere: of a seq2seq model's text the beginning may be in what its decoder has
written already. Texts that lack equally many tokens are written on together, so that none needs
more positions than it has itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from dpft.generation.decoding import (
    DecodeConfig,
    batches_by_tokens,
    evaluation_mode,
    generation_defaults,
    generation_settings,
    padded,
)

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """A text that a model is to write on."""

    read: tuple[int, ...]
    """Tokens that it reads; at least one."""
    max_new_tokens: int
    """How many tokens to write; at least one."""
    decoder_tokens: tuple[int, ...] = ()
    """Tokens that the decoder of a seq2seq model has written already."""


def continuations(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    beginnings: Sequence[Prefix],
    *,
    batch_size: int,
    on_batch: Callable[[int], None] | None = None,
) -> list[tuple[int, ...]]:
    """Returns the likeliest next token after each beginning, and after that, and so on.

    Args:
        model: A causal or seq2seq language model, on the device it shall run on.
        tokenizer: Its end-of-text token ends what is written, and pads.
        beginnings: Each fits the model's positions with what it lacks.
        batch_size: How many of the longest are written on at once. Memory and speed only.
        on_batch: Called after each batch with the number of texts it held.

    Returns:
        Tokens in the order of the beginnings, at most as many as each lacks, without the
        end-of-text token.

    Guarantees:
        The model's modes and settings are as before, also after an error; no random number is
        drawn.
    """
    written: list[tuple[int, ...]] = [()] * len(beginnings)
    end = tokenizer.eos_token_id
    for places in _alike(beginnings):
        config = DecodeConfig(
            strategy="greedy", max_new_tokens=beginnings[places[0]].max_new_tokens
        )
        settings = generation_settings(config, tokenizer, model.config)
        with evaluation_mode(model), generation_defaults(model, type(settings)()):
            lengths = [len(beginnings[at].read) + beginnings[at].max_new_tokens for at in places]
            for batch in batches_by_tokens(lengths, batch_size):
                chosen = [places[at] for at in batch]
                rows = _write(model, [beginnings[at] for at in chosen], settings)
                for at, row in zip(chosen, rows, strict=True):
                    written[at] = tuple(row[: row.index(end)] if end in row else row)
                if on_batch is not None:
                    on_batch(len(chosen))
    return written


def _alike(beginnings: Sequence[Prefix]) -> list[list[int]]:
    """Returns the places of those that lack equally much and are begun as far, the longest first.

    A decoder's own tokens are not padded.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for at, each in enumerate(beginnings):
        groups.setdefault((each.max_new_tokens, len(each.decoder_tokens)), []).append(at)
    return [groups[key] for key in sorted(groups, reverse=True)]


def _write(
    model: "PreTrainedModel", batch: Sequence[Prefix], settings: "GenerationConfig"
) -> list[list[int]]:
    import torch

    seq2seq = bool(model.config.is_encoder_decoder)
    length = max(len(each.read) for each in batch)
    pad, left = settings.pad_token_id, not seq2seq
    ids = [padded(each.read, length, pad, left=left) for each in batch]
    mask = [padded([1] * len(each.read), length, 0, left=left) for each in batch]
    inputs: dict[str, Any] = {}
    before = length
    if seq2seq:
        decoder = [[settings.decoder_start_token_id, *each.decoder_tokens] for each in batch]
        inputs["decoder_input_ids"] = torch.tensor(decoder, device=model.device)
        before = len(decoder[0])
    with torch.no_grad():
        written = cast(Any, model).generate(
            input_ids=torch.tensor(ids, device=model.device),
            attention_mask=torch.tensor(mask, device=model.device),
            generation_config=settings,
            synced_gpus=False,
            **inputs,
        )
    rows: list[list[int]] = written[:, before:].tolist()
    return rows
