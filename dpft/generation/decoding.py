"""Batched decoding of texts for prompts (greedy, beam, nucleus); batching does not change a text.

Prompts of similar lengths share a batch (``batches_by_tokens``). They are padded on the left, or on
the right for a seq2seq model. ``generate`` derives position ids from the attention mask, so padding
changes a logit only by rounding (1e-7 in float32). Greedy search and beam search come from
transformers. The module ``processors`` contains sampling, penalties for repetition in the generated
tokens, and the prefill that reads each prompt once for all its beams. The ``generation_config`` of
a checkpoint is ignored. Afterwards, the model is in its previous state and can continue training
(``evaluation_mode``, ``generation_defaults``).

``continuations`` continues token prefixes greedily, which audits need. ``generate_texts`` completes
whole prompts, but a prefix may end anywhere in a text. For a seq2seq model, part of the prefix may
be in the decoder, as tokens that the decoder has already generated. Only texts with the same number
of tokens to generate share a batch, so that no text needs more positions than its own length.

Shapes: b prompts, t tokens of the longest prompt.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import Field

from dpft.config.section import Section
from dpft.errors import InputError
from dpft.strict_model import AtLeastOne, Count, Positive

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import (
        GenerationConfig,
        LogitsProcessorList,
        PretrainedConfig,
        PreTrainedModel,
        PreTrainedTokenizerBase,
    )


def batches_by_tokens(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Yield batches with at most as many tokens as ``batch_size`` inputs of the maximum length.

    Args:
        lengths: Number of tokens of each input, including the tokens to generate; at least 1.
        batch_size: Number of inputs in a batch of the longest inputs, at least 1.

    Yields:
        Positions in ``lengths``, the longest inputs first. If a batch is too large for the device,
        the first batch therefore fails. Padded to its first input, a batch has at most
        ``batch_size * max(lengths)`` tokens.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    room = batch_size * max(lengths, default=0)
    start = 0
    while start < len(order):
        end = start + room // lengths[order[start]]
        yield order[start:end]
        start = end


@contextmanager
def evaluation_mode(model: "nn.Module") -> Iterator[None]:
    """Put the model in eval mode inside the block, then restore the mode of every module.

    ``model.train()`` would also change modules that were frozen in eval mode.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def generation_defaults(model: "nn.Module", defaults: "GenerationConfig") -> Iterator[None]:
    """Replace the checkpoint's generation settings inside the block, then restore them.

    transformers takes settings that a call does not specify from ``model.generation_config``. A
    checkpoint may contain a repetition penalty, suppressed tokens or a minimum length there.
    """
    owners = [vars(module) for module in model.modules() if "generation_config" in vars(module)]
    saved = [attributes["generation_config"] for attributes in owners]
    for attributes in owners:
        attributes["generation_config"] = defaults
    try:
        yield
    finally:
        for attributes, config in zip(owners, saved, strict=True):
            attributes["generation_config"] = config


class DecodeConfig(Section):
    """Decoding strategy and its settings, ``conf/decode/<strategy>.yaml``."""

    strategy: Literal["beam", "greedy", "nucleus"] = "beam"
    """beam keeps the ``num_beams`` likeliest texts at every step, greedy takes the likeliest token,
    and nucleus samples among the likeliest tokens."""
    num_beams: AtLeastOne = 5
    """For beam: number of texts that are kept at every step."""
    max_new_tokens: AtLeastOne = 100
    """Maximum number of generated tokens, including the end-of-text token."""
    length_penalty: float = 1.0
    """For beam: exponent of the text length, in tokens, by which the log-likelihood is divided."""
    no_repeat_ngram_size: Count = 0
    """Length in tokens of n-grams that may occur only once in a generated text (0: no limit)."""
    repetition_penalty: Positive = 1.0
    """Factor above 1 that makes tokens less likely if the generated text already contains them
    (Keskar et al. 2019)."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.9
    """For nucleus: probability mass of the likeliest tokens, from which a token is sampled."""
    temperature: Positive = 1.0
    """For nucleus: divisor of the logits; values below 1 make likely tokens more likely."""
    seed: Count | None = 0
    """For nucleus: the same seed generates the same texts (null: a fresh seed)."""

    @property
    def draws(self) -> bool:
        """Whether texts are sampled, so that one prompt may have several texts."""
        return self.strategy == NUCLEUS


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Position of some prompts in the stream of random numbers that a seed determines."""

    places: Sequence[int]
    """Index of each prompt among all requested prompts."""
    attempt: int = 0
    """Number of earlier texts that were generated for these prompts."""


NUCLEUS = "nucleus"


def generate_texts(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    prompts: Sequence[Sequence[int] | str],
    *,
    config: DecodeConfig,
    batch_size: int,
    on_batch: Callable[[int], None] | None = None,
    draws: Draws | None = None,
    sentinels: Sequence[int] = (),
    processors: "Processors | None" = None,
    answer_ids: Callable[[list[int]], list[int]] = list,
) -> list[str]:
    """Return the generated text for each prompt, up to its end-of-text token.

    Args:
        model: A causal or seq2seq language model, on its device.
        tokenizer: Must have an end-of-text token, which is also used for padding.
        prompts: Token ids, or texts to tokenize without special tokens. The model's positions must
            have room for ``max_new_tokens`` after each prompt.
        config: The decoding strategy.
        batch_size: Number of prompts in a batch of the longest prompts. Batches of shorter prompts
            contain the same number of tokens. Affects only memory and speed.
        on_batch: Called after each batch with the number of its prompts.
        draws: Selects the random numbers for nucleus sampling; None means a first attempt at these
            prompts.
        sentinels: Tokens that mark the gaps of a prompt, in order. The model generates each
            sentinel of the prompt before the words that fill its gap. The text contains the name of
            the sentinel.
        processors: Logits processors that replace the processors of the strategy.
        answer_ids: Selects the tokens to decode from the generated tokens.

    Returns:
        Texts in the order of the prompts, without surrounding whitespace.

    Guarantees:
        No strategy uses torch's generators, so the generators of training keep their states. A text
        depends on its prompt and, for nucleus, on the seed, the index of the prompt and the
        attempt. Other prompts in its batch affect the text only by rounding. The model's modes,
        configuration and generation settings are restored, also after an error.

    Raises:
        InputError: A prompt has no token, or ``max_new_tokens`` is too small for its gaps.
    """
    token_ids = [_token_ids(prompt, tokenizer) for prompt in prompts]
    if not all(token_ids):
        raise InputError(
            "a prompt must have at least one token, got an empty prompt.", key="prompts"
        )
    settings = generation_settings(config, tokenizer, model.config)
    gaps = [sum(token in sentinels for token in ids) for ids in token_ids]
    draws = draws or Draws(places=range(len(token_ids)))
    processors = processors or _processors(config, settings, draws, gaps, sentinels)
    texts = [""] * len(token_ids)
    with evaluation_mode(model), generation_defaults(model, type(settings)()):
        lengths = [len(ids) + config.max_new_tokens for ids in token_ids]
        for indices in batches_by_tokens(lengths, batch_size):
            batch = [token_ids[index] for index in indices]
            before = 1 if model.config.is_encoder_decoder else max(map(len, batch))
            rows = _generate(model, batch, settings, processors(indices, before))
            for index, row in zip(indices, rows, strict=True):
                texts[index] = _text(answer_ids(row), tokenizer, sentinels)
            if on_batch is not None:
                on_batch(len(indices))
    return texts


def _token_ids(prompt: Sequence[int] | str, tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    if not isinstance(prompt, str):
        return list(prompt)
    encoded = tokenizer(prompt, add_special_tokens=False, split_special_tokens=True)
    return list(encoded["input_ids"])


def generation_settings(
    config: DecodeConfig, tokenizer: "PreTrainedTokenizerBase", architecture: "PretrainedConfig"
) -> "GenerationConfig":
    """Return a strategy's settings for transformers, without any setting of the checkpoint."""
    from transformers import GenerationConfig

    end = tokenizer.eos_token_id
    start = getattr(architecture, "decoder_start_token_id", None)
    seq2seq = bool(architecture.is_encoder_decoder)
    search: dict[str, Any] = {"num_beams": 1}
    if config.strategy == "beam":
        search = {
            "num_beams": config.num_beams,
            "length_penalty": config.length_penalty,
            "early_stopping": False,
        }
    settings: GenerationConfig = GenerationConfig(
        max_new_tokens=config.max_new_tokens,
        do_sample=False,
        use_cache=True,
        pad_token_id=tokenizer.pad_token_id if seq2seq else end,
        eos_token_id=end,
        decoder_start_token_id=(tokenizer.pad_token_id if start is None else start)
        if seq2seq
        else None,
        **search,
    )
    return settings


Processors = Callable[[Sequence[int], int], "LogitsProcessorList | None"]
"""Function that returns the logits processors of a batch. Its arguments are the indices of the
batch's prompts among all prompts, and the number of tokens before the generated tokens."""


def _processors(
    config: DecodeConfig,
    settings: "GenerationConfig",
    draws: Draws,
    gaps: Sequence[int],
    sentinels: Sequence[int],
) -> Processors:
    unrepeated = config.no_repeat_ngram_size > 0 or config.repetition_penalty != 1
    if not (config.draws or unrepeated or sentinels):
        return lambda *_: None
    from dpft.generation.processors import (
        GapFilling,
        nucleus_processors,
        repetition_processors,
        root_seed,
        uniforms,
    )

    root = root_seed(config.seed)

    def processors(indices: Sequence[int], before: int) -> "LogitsProcessorList":
        batch_processors = repetition_processors(
            before, ngram=config.no_repeat_ngram_size, penalty=config.repetition_penalty
        )
        if sentinels:
            batch_processors.append(
                GapFilling(
                    [gaps[index] for index in indices],
                    sentinels=sentinels,
                    end=settings.eos_token_id,
                    before=before,
                    max_new_tokens=config.max_new_tokens,
                )
            )
        if config.draws:
            places = [draws.places[index] for index in indices]
            numbers = uniforms(root, places, config.max_new_tokens, attempt=draws.attempt)
            batch_processors += nucleus_processors(
                numbers, top_p=config.top_p, temperature=config.temperature
            )
        return batch_processors

    return processors


def _generate(
    model: "PreTrainedModel",
    read: Sequence[Sequence[int]],
    settings: "GenerationConfig",
    processors: "LogitsProcessorList | None" = None,
    begun: Sequence[Sequence[int]] = (),
) -> list[list[int]]:
    """Return the new tokens of each row, up to its end-of-text token.

    Args:
        model: As in ``generate_texts``.
        read: The input tokens of each row.
        settings: The result of ``generation_settings``.
        processors: The logits processors of the batch.
        begun: Tokens that the decoder of a seq2seq model has already generated, the same number in
            each row. If empty, the decoder has generated no token.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from dpft.generation.processors import prompts_read_once

    # The output of a seq2seq model is separate from its input, and begins with a start token.
    side = "right" if model.config.is_encoder_decoder else "left"
    before = 1 if model.config.is_encoder_decoder else max(map(len, read))
    padded = partial(pad_sequence, batch_first=True, padding_side=side)
    ids = [torch.tensor(row) for row in read]
    inputs: dict[str, Tensor] = {  # peft accepts only keyword arguments
        "input_ids": padded(ids, padding_value=settings.pad_token_id),
        "attention_mask": padded([torch.ones_like(row) for row in ids]),
    }
    if any(begun):
        decoder = [[settings.decoder_start_token_id, *tokens] for tokens in begun]
        inputs["decoder_input_ids"] = torch.tensor(decoder)
        before = len(decoder[0])
    # Use no_grad, because training cannot use buffers that were created in inference mode.
    with torch.no_grad(), prompts_read_once(model, settings.num_beams):
        written: Tensor = cast(Any, model).generate(
            **{name: value.to(model.device) for name, value in inputs.items()},
            generation_config=settings,
            logits_processor=processors,
            synced_gpus=False,  # by default, sharded ranks would wait for each other
        )
    end = settings.eos_token_id
    rows: list[list[int]] = written[:, before:].tolist()
    return [row[: row.index(end)] if end in row else row for row in rows]


def _text(
    written: list[int], tokenizer: "PreTrainedTokenizerBase", sentinels: Sequence[int]
) -> str:
    marks = [at for at, token in enumerate(written) if token in sentinels]
    parts = []
    for start, stop in zip([0, *marks], [*marks, len(written)], strict=True):
        named = start < stop and written[start] in sentinels
        parts.append(str(tokenizer.convert_ids_to_tokens(written[start])) if named else "")
        rest = written[start + named : stop]
        text = tokenizer.decode(rest, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        parts.append(str(text).strip())
    return " ".join(part for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class DecodingPrompt:
    """Beginning of a text that a model continues."""

    read: tuple[int, ...]
    """Tokens that the model reads; at least one."""
    max_new_tokens: int
    """Number of tokens to generate; at least one."""
    decoder_tokens: tuple[int, ...] = ()
    """Tokens that the decoder of a seq2seq model has already generated."""


def continuations(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    beginnings: Sequence[DecodingPrompt],
    *,
    batch_size: int,
    on_batch: Callable[[int], None] | None = None,
) -> list[tuple[int, ...]]:
    """Return the greedy continuation of each beginning, token by token.

    Args:
        model: A causal or seq2seq language model, on its device.
        tokenizer: Its end-of-text token ends a continuation and is used for padding.
        beginnings: The model's positions must have room for each beginning and its continuation.
        batch_size: Number of texts in a batch of the longest texts. Affects only memory and speed.
        on_batch: Called after each batch with the number of its texts.

    Returns:
        Tokens in the order of the beginnings, at most ``max_new_tokens`` of each beginning, without
        the end-of-text token.

    Guarantees:
        The model's modes and settings are restored, also after an error. No random number is drawn.
    """
    written: list[tuple[int, ...]] = [()] * len(beginnings)
    for places in _alike(beginnings):
        config = DecodeConfig(
            strategy="greedy", max_new_tokens=beginnings[places[0]].max_new_tokens
        )
        settings = generation_settings(config, tokenizer, model.config)
        with evaluation_mode(model), generation_defaults(model, type(settings)()):
            lengths = [len(beginnings[at].read) + beginnings[at].max_new_tokens for at in places]
            for batch in batches_by_tokens(lengths, batch_size):
                chosen = [places[at] for at in batch]
                read = [beginnings[at].read for at in chosen]
                begun = [beginnings[at].decoder_tokens for at in chosen]
                rows = _generate(model, read, settings, begun=begun)
                for at, row in zip(chosen, rows, strict=True):
                    written[at] = tuple(row)
                if on_batch is not None:
                    on_batch(len(chosen))
    return written


def _alike(beginnings: Sequence[DecodingPrompt]) -> list[list[int]]:
    """Return groups of indices with equal numbers of new tokens and of decoder tokens.

    The groups with the most new tokens come first. Decoder tokens are not padded.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for at, beginning in enumerate(beginnings):
        key = (beginning.max_new_tokens, len(beginning.decoder_tokens))
        groups.setdefault(key, []).append(at)
    return [groups[key] for key in sorted(groups, reverse=True)]
