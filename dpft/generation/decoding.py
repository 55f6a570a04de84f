"""Decode texts for prompts in batches (greedy, beam, nucleus); batching does not change a text.

Prompts of like lengths are together (`batches_by_tokens`) and padded on the left (on the right for
a seq2seq model); the attention mask goes along and ``generate`` derives the position ids from it,
so padding changes a logit by rounding only (1e-7 in float32). Searching is transformers' own;
reading each prompt once for all its beams, sampling, and repetition, which is of what was written
alone, are in ``processors``. What the checkpoint's ``generation_config`` says is not heard, and the
model goes on training afterwards as it was (`evaluation_mode`, `generation_defaults`).

``continuations`` are greedy ones of token prefixes, as audits ask for them: an answer has a prompt
and ends where the model ends it, and there a text is cut anywhere: of a seq2seq model's text the
beginning may be in what its decoder has written already. Texts that lack equally many tokens are
written on together, so that none needs more positions than it has itself.

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
    """Yield the inputs in batches that hold as many tokens as ``batch_size`` of the longest.

    Args:
        lengths: Tokens that each input takes, those to be written after it included; at least 1.
        batch_size: How many of the longest input make a batch, at least 1.

    Yields:
        Positions in ``lengths``, the longest first: a batch too large for the device fails at once.
        Padded to its first, a batch has at most ``batch_size * max(lengths)`` tokens.
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
    """Put the model in eval mode, and every module back in the mode it was in.

    ``model.train()`` alone would also wake modules that were frozen in eval mode.
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
    """Replace the checkpoint's generation settings, and puts them back.

    transformers fills what a call leaves open from ``model.generation_config``, where a checkpoint
    may ship a repetition penalty, suppressed tokens or a minimum length of its own.
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
    """How a text is chosen, ``conf/decode/<strategy>.yaml``."""

    strategy: Literal["beam", "greedy", "nucleus"] = "beam"
    """beam keeps the ``num_beams`` likeliest texts at every step, greedy takes the likeliest token,
    nucleus draws among the likeliest."""
    num_beams: AtLeastOne = 5
    """Texts that beam keeps at every step."""
    max_new_tokens: AtLeastOne = 100
    """Most tokens written after the prompt, end-of-text included."""
    length_penalty: float = 1.0
    """For beam: power of a text's length, in tokens, that its log-likelihood is divided by."""
    no_repeat_ngram_size: Count = 0
    """No run of so many tokens is written twice in a text; 0: any may be."""
    repetition_penalty: Positive = 1.0
    """Above 1, tokens that a text has already become less likely by this factor (Keskar et al.
    2019)."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.9
    """For nucleus: the likeliest tokens that hold this much of the probability are drawn from."""
    temperature: Positive = 1.0
    """For nucleus: what logits are divided by; below 1 likely tokens become likelier."""
    seed: Count | None = 0
    """For nucleus: the same seed writes the same texts; None for fresh randomness."""

    @property
    def draws(self) -> bool:
        """Whether texts are drawn, so that one prompt may have several."""
        return self.strategy == NUCLEUS


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Which random numbers of the seed are drawn for some prompts."""

    places: Sequence[int]
    """Each prompt's place among all that are asked for."""
    attempt: int = 0
    """How often they were written after before."""


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
    """Return the text the model writes after each prompt, up to its end-of-text token.

    Args:
        model: A causal or seq2seq language model, on the device it shall run on.
        tokenizer: Has an end-of-text token; that token also pads.
        prompts: Token ids, or text to tokenise without special tokens. Each leaves room for
            ``max_new_tokens`` in the model's positions.
        config: How a text is chosen.
        batch_size: How many of the longest prompts are written after at once; of shorter ones as
            many as hold the same tokens. Memory and speed only.
        on_batch: Called after each batch with the number of prompts it held.
        draws: Which random numbers are theirs, for nucleus; None: those of a first attempt at
            these prompts.
        sentinels: Tokens that stand for the gaps of a prompt, in order. Each that it has is
            written before the words that fill its gap, and its name stands in the text.
        processors: What chooses among the logits, in place of what the strategy says.
        answer_ids: Selects the tokens to decode of those that the model has generated.

    Returns:
        Texts in the order of the prompts, blanks around them stripped.

    Guarantees:
        No strategy touches torch's generators, so training's stand as they stood. A text depends
        on its prompt, and for nucleus on the seed, the prompt's place and the attempt; on the
        rest of its batch by rounding only. The model's modes, configuration and generation
        settings are as before, also after an error.

    Raises:
        InputError: A prompt has no token, or ``max_new_tokens`` too few for its gaps.
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
    """Return a strategy's settings as transformers takes them, nothing of the checkpoint's."""
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
"""From the positions of a batch's prompts among all prompts, and how many tokens stand before what
is written, to the processors of the batch's logits."""


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
        read: What the model reads of each row.
        settings: Of ``generation_settings``.
        processors: Of the batch's logits.
        begun: Tokens that the decoder of a seq2seq model has written already, equally many in
            each row; empty: it has written none.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from dpft.generation.processors import prompts_read_once

    # A seq2seq model writes apart from what it reads, after one token to start with.
    side = "right" if model.config.is_encoder_decoder else "left"
    before = 1 if model.config.is_encoder_decoder else max(map(len, read))
    padded = partial(pad_sequence, batch_first=True, padding_side=side)
    ids = [torch.tensor(row) for row in read]
    inputs: dict[str, Tensor] = {  # peft takes them by name alone
        "input_ids": padded(ids, padding_value=settings.pad_token_id),
        "attention_mask": padded([torch.ones_like(row) for row in ids]),
    }
    if any(begun):
        decoder = [[settings.decoder_start_token_id, *tokens] for tokens in begun]
        inputs["decoder_input_ids"] = torch.tensor(decoder)
        before = len(decoder[0])
    # no_grad, not inference_mode: a buffer a model made there could not take part in training
    with torch.no_grad(), prompts_read_once(model, settings.num_beams):
        written: Tensor = cast(Any, model).generate(
            **{name: value.to(model.device) for name, value in inputs.items()},
            generation_config=settings,
            logits_processor=processors,
            synced_gpus=False,  # transformers would have the ranks of a sharded model in step
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
    beginnings: Sequence[DecodingPrompt],
    *,
    batch_size: int,
    on_batch: Callable[[int], None] | None = None,
) -> list[tuple[int, ...]]:
    """Return the likeliest next token after each beginning, and after that, and so on.

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
    """Return groups of places with equally many new and equally many decoder tokens.

    The groups with the most new tokens come first. Decoder tokens are not padded.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for at, beginning in enumerate(beginnings):
        key = (beginning.max_new_tokens, len(beginning.decoder_tokens))
        groups.setdefault(key, []).append(at)
    return [groups[key] for key in sorted(groups, reverse=True)]
