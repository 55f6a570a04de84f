"""Logits processors for decoding: nucleus sampling, repetition penalties, gap filling, prefill.

- **Nucleus sampling** (Holtzman et al. 2020, arXiv 1904.09751): transformers' own sampling draws
  for a whole batch from torch's global generator. A text would then depend on the other texts of
  its batch, and the generator that training uses would change its state. In this module, each
  prompt has its own stream of uniform numbers, given by its index and the attempt. The next token
  is the first token at which the cumulative distribution exceeds the next number.
- **Repetition**: transformers' own processors, applied only to generated tokens. Words of the
  prompt may be copied, and padding has no effect.
- **Gaps**: a model that has learned hidden spans (Raffel et al. 2020, section 3.3.4) reads a
  sentinel in place of each gap. It generates each sentinel again, followed by the fill of the gap.
  ``GapFilling`` forces the sentinels: if the model would end a fill, the next sentinel is
  generated, or the end-of-text token after the last fill. Every gap is therefore filled, even by a
  model that has learned little.
- **Prefill**: the model reads a prompt once for all of its beams, and its state is then copied.

Shapes: b prompts, k beams of each, t tokens so far, v tokens of the vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    Cache,
    LogitsProcessor,
    LogitsProcessorList,
    NoRepeatNGramLogitsProcessor,
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)
from transformers.utils.generic import ModelOutput

from dpft.errors import InputError


def root_seed(seed: int | None) -> int:
    """Return the seed, or fresh entropy of the operating system if the seed is None."""
    entropy = np.random.SeedSequence(seed).entropy
    assert isinstance(entropy, int)
    return entropy


def uniforms(root: int, places: Sequence[int], length: int, *, attempt: int = 0) -> Tensor:
    """Return a random number in [0, 1) for each token that may be generated, float64.

    Args:
        root: The result of ``root_seed``.
        places: Index of each prompt among all prompts, shape (b,).
        length: Maximum number of tokens of a text.
        attempt: Number of earlier texts that were generated for these prompts.

    Returns:
        Numbers, shape (b, length). A row depends only on ``root``, the index of its prompt and the
        attempt.
    """
    again = (attempt,) if attempt else ()
    seeds = [np.random.SeedSequence(root, spawn_key=(place, *again)) for place in places]
    rows = [np.random.default_rng(seed).random(length) for seed in seeds]
    return torch.from_numpy(np.stack(rows))


def nucleus_processors(draws: Tensor, *, top_p: float, temperature: float) -> LogitsProcessorList:
    """Return processors with which transformers' greedy search samples from the nucleus."""
    cut = [TemperatureLogitsWarper(temperature), TopPLogitsWarper(top_p)]
    return LogitsProcessorList([*cut, _Choice(draws)])


class _Choice(LogitsProcessor):
    """Processor that selects the next token by a random number and excludes all other tokens."""

    def __init__(self, draws: Tensor) -> None:
        self._columns = iter(draws.unbind(dim=1))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores, shape (b, v): 0 for the selected token, minus infinity for others."""
        cumulative = scores.double().softmax(dim=-1).cumsum(dim=-1)
        drawn = next(self._columns).to(scores.device)[:, None] * cumulative[:, -1:]
        chosen = torch.searchsorted(cumulative, drawn, right=True)
        # With NaN logits, searchsorted returns an index past the last token.
        chosen = chosen.clamp(max=scores.shape[1] - 1)
        return torch.full_like(scores, float("-inf")).scatter(1, chosen, 0.0)


def repetition_processors(before: int, *, ngram: int, penalty: float) -> LogitsProcessorList:
    """Return processors against repetition; an empty list if every token may repeat."""
    processors: list[LogitsProcessor] = []
    if penalty != 1:
        processors.append(_OfWritten(RepetitionPenaltyLogitsProcessor(penalty), before))
    if ngram:
        processors.append(_OfWritten(NoRepeatNGramLogitsProcessor(ngram), before))
    return LogitsProcessorList(processors)


class _OfWritten(LogitsProcessor):
    """Processor that applies another processor only to the generated tokens."""

    def __init__(self, inner: LogitsProcessor, before: int) -> None:
        self._inner, self._before = inner, before

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the logits, shape (b, v), that ``inner`` computes from the generated tokens."""
        written = input_ids[:, self._before :]
        if not written.shape[1]:
            return scores
        processed: Tensor = self._inner(written, scores)
        return processed


NEVER = float("-inf")


class GapFilling(LogitsProcessor):
    """Processor that restricts a model to filling the gaps of some prompts."""

    def __init__(
        self,
        gaps: Sequence[int],
        *,
        sentinels: Sequence[int],
        end: int,
        before: int,
        max_new_tokens: int,
    ) -> None:
        """Store the number of gaps of each of b prompts.

        Args:
            gaps: Number of gaps of each prompt, at least one. A prompt contains the first
                sentinels.
            sentinels: Token ids, in the order in which they occur in a text.
            end: The end-of-text token.
            before: Number of tokens of a row before the generated tokens.
            max_new_tokens: Maximum number of generated tokens, divided equally among the gaps of a
                prompt.

        Raises:
            InputError: There is no room for a token in every gap.
        """
        self._gaps, self._before = gaps, before
        self._sentinels, self._end = list(sentinels), end
        most = max(gaps)
        if max_new_tokens < 2 * most + 1:
            raise InputError(
                f"decode.max_new_tokens must be at least {2 * most + 1} for the {most} gaps of a"
                f" text, got {max_new_tokens}.",
                key="decode.max_new_tokens",
                value=max_new_tokens,
                hint=f"decode.max_new_tokens={2 * most + 1}",
            )
        # Each gap also needs room for its sentinel, and the text for its end-of-text token.
        self._longest = [(max_new_tokens - 1) // count - 1 for count in gaps]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the logits, shape (b * k, v), with sentinels and end only where allowed."""
        beams = len(scores) // len(self._gaps)
        marks = [*self._sentinels, self._end]
        masked = scores.clone()
        masked[:, marks] = NEVER
        for row, tokens in enumerate(input_ids[:, self._before :].tolist()):
            prompt = row // beams
            places = [at for at, token in enumerate(tokens) if token in self._sentinels]
            length = len(tokens) - places[-1] - 1 if places else 0
            is_last = len(places) >= self._gaps[prompt]
            following = self._end if is_last else self._sentinels[len(places)]
            if not places or length >= self._longest[prompt]:
                masked[row] = NEVER
                masked[row, following] = 0
            elif length:
                masked[row, following] = scores[row, marks].logsumexp(dim=0)
        return masked


DIMENSIONS = {
    "input_ids": 2,
    "inputs_embeds": 3,
    "attention_mask": 2,
    "position_ids": 2,
    "token_type_ids": 2,
    "decoder_input_ids": 2,
    "decoder_inputs_embeds": 3,
    "decoder_attention_mask": 2,
    "decoder_position_ids": 2,
}
"""Model arguments with one row for each copy of a prompt, and their numbers of dimensions."""


@contextmanager
def prompts_read_once(model: nn.Module, num_beams: int) -> Iterator[None]:
    """Make the first forward pass of a ``generate`` call read each prompt once for all its beams.

    This requires that the inputs consist only of rows and a cache. With any other input, the model
    reads every copy, as without this context manager.

    Args:
        model: A language model, or a wrapper around one (peft).
        num_beams: Number of copies that ``generate`` makes of each prompt, k.
    """
    reader = next(
        (module for module in model.modules() if isinstance(module, PreTrainedModel)), None
    )
    if reader is None or num_beams == 1:
        yield
        return
    first = _FirstPass(num_beams)
    hooks = (
        reader.register_forward_pre_hook(first.take_copies_out, with_kwargs=True),
        reader.register_forward_hook(first.put_copies_back),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _FirstPass:
    """Hooks that change only the first forward pass of a model."""

    def __init__(self, num_beams: int) -> None:
        self._num_beams = num_beams
        self._begun = False
        self._cache: Cache | None = None

    def take_copies_out(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with one row per prompt: (b * k, ...) becomes (b, ...)."""
        rows = None if self._begun else _rows(args, kwargs)
        self._begun = True
        if rows is None:
            return args, kwargs
        self._cache = kwargs["past_key_values"]
        # With a prefix, the cache already has rows before the first forward pass.
        firsts: Any = torch.arange(0, rows, self._num_beams)
        self._cache.reorder_cache(firsts)
        return args, {name: self._one_each(value) for name, value in kwargs.items()}

    def put_copies_back(self, model: nn.Module, args: object, outputs: ModelOutput) -> ModelOutput:
        """Return the logits with k rows for each prompt, and expand the cache in place."""
        if self._cache is None:
            return outputs
        copies: Any = torch.arange(len(outputs["logits"])).repeat_interleave(self._num_beams)
        self._cache.reorder_cache(copies)
        self._cache = None
        outputs["logits"] = outputs["logits"].repeat_interleave(self._num_beams, dim=0)
        return outputs

    def _one_each(self, value: Any) -> Any:
        if isinstance(value, ModelOutput):
            return type(value)(**{name: self._one_each(part) for name, part in value.items()})
        return value[:: self._num_beams] if isinstance(value, Tensor) else value


def _rows(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """Return the number of rows that all arguments have, b * k, or None if it is not known."""
    if args or not isinstance(kwargs.get("past_key_values"), Cache):
        return None
    tensors = {name: value for name, value in kwargs.items() if isinstance(value, Tensor)}
    if any(tensor.dim() != DIMENSIONS.get(name) for name, tensor in tensors.items()):
        return None
    encoded = list((kwargs.get("encoder_outputs") or {}).values())
    if not all(isinstance(value, Tensor) for value in encoded):
        return None
    sizes = {len(tensor) for tensor in [*tensors.values(), *encoded]}
    return sizes.pop() if len(sizes) == 1 else None
