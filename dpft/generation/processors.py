"""Logits processors for decoding: nucleus sampling, repetition penalties, filling gaps, prefill.

- **Nucleus sampling** (Holtzman et al. 2020, arXiv 1904.09751): transformers' own draws for a whole
  batch from torch's global generator, so that a text would depend on the texts beside it, and
  training's generators would move. Here every prompt has a stream of uniform numbers by its place
  and by the attempt, and the token is the one at which the cumulative distribution passes the
  number.
- **Repetition**: transformers' own processors, applied to what is written alone: a prompt's words
  may be copied, and its padding counts for nothing.
- **Gaps**: a model that has learned hidden spans (Raffel et al. 2020, section 3.3.4) reads a
  sentinel in the place of each gap, and writes each sentinel again with what fills the gap.
  `GapFilling` writes the sentinels: where the model would end a fill, the next gap's follows, and
  after the last fill the end. So every gap is filled, also by a model that has learned little.
- **Prefill**: the model reads a prompt once for all of its beams, then its state is copied.

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
    """Return the seed, or fresh entropy of the operating system for None."""
    entropy = np.random.SeedSequence(seed).entropy
    assert isinstance(entropy, int)
    return entropy


def uniforms(root: int, places: Sequence[int], length: int, *, attempt: int = 0) -> Tensor:
    """Return a random number in [0, 1) for each token that may be written, float64.

    Args:
        root: What ``root_seed`` returned.
        places: Each prompt's place among all prompts, shape (b,).
        length: Most tokens of a text.
        attempt: How often these prompts were written after before.

    Returns:
        Shape (b, length); a row depends on ``root``, its prompt's place and the attempt alone.
    """
    again = (attempt,) if attempt else ()
    seeds = [np.random.SeedSequence(root, spawn_key=(place, *again)) for place in places]
    rows = [np.random.default_rng(seed).random(length) for seed in seeds]
    return torch.from_numpy(np.stack(rows))


def nucleus_processors(draws: Tensor, *, top_p: float, temperature: float) -> LogitsProcessorList:
    """Return processors that make transformers' greedy search sample from the nucleus."""
    cut = [TemperatureLogitsWarper(temperature), TopPLogitsWarper(top_p)]
    return LogitsProcessorList([*cut, _Choice(draws)])


class _Choice(LogitsProcessor):
    """Chooses each text's next token by its next random number; no other token stays possible."""

    def __init__(self, draws: Tensor) -> None:
        self._columns = iter(draws.unbind(dim=1))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores of shape (b, v): 0 for the chosen token, minus infinity for others."""
        cumulative = scores.double().softmax(dim=-1).cumsum(dim=-1)
        drawn = next(self._columns).to(scores.device)[:, None] * cumulative[:, -1:]
        chosen = torch.searchsorted(cumulative, drawn, right=True)
        # Logits that are not numbers are passed by no number.
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
    """A processor that sees what was written and not what was read."""

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
    """Lets a model write nothing but what fills the gaps of some prompts."""

    def __init__(
        self,
        gaps: Sequence[int],
        *,
        sentinels: Sequence[int],
        end: int,
        before: int,
        max_new_tokens: int,
    ) -> None:
        """Take how many gaps each of b prompts has.

        Args:
            gaps: At least one each; a prompt has the first ones of ``sentinels``.
            sentinels: Token ids, in the order in which they stand in a text.
            end: The end-of-text token.
            before: Tokens of a row that were not written.
            max_new_tokens: Shared alike by a prompt's gaps.

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
        # Each gap takes its sentinel, too, and the text its end.
        self._longest = [(max_new_tokens - 1) // count - 1 for count in gaps]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the logits, shape (b * k, v); sentinels and end only where they may follow."""
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
"""Arguments of a model that have a row for each copy of a prompt, and how many dimensions."""


@contextmanager
def prompts_read_once(model: nn.Module, num_beams: int) -> Iterator[None]:
    """Let the first forward pass of one ``generate`` read each prompt once for all its beams.

    A model that is given, or keeps, something else than rows and a cache reads every copy, as
    without this context manager.

    Args:
        model: A language model, or a wrapper around one (peft).
        num_beams: Copies that ``generate`` makes of each prompt, k.
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
    """Hooks that change a model's first forward pass and no later one."""

    def __init__(self, num_beams: int) -> None:
        self._num_beams = num_beams
        self._begun = False
        self._cache: Cache | None = None

    def take_copies_out(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with one row for each prompt, shape (b, ...) of (b * k, ...)."""
        rows = None if self._begun else _rows(args, kwargs)
        self._begun = True
        if rows is None:
            return args, kwargs
        self._cache = kwargs["past_key_values"]
        # a prefix is in the cache before anything is read
        firsts: Any = torch.arange(0, rows, self._num_beams)
        self._cache.reorder_cache(firsts)
        return args, {name: self._one_each(value) for name, value in kwargs.items()}

    def put_copies_back(self, model: nn.Module, args: object, outputs: ModelOutput) -> ModelOutput:
        """Return the logits with k rows for each prompt, and copy the cache in its place."""
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
    """Return how many rows all arguments have, b * k; None where that is not known of them all."""
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
