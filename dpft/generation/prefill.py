"""One pass over a prompt for all of its beams: the model reads it once, then its state is copied.

transformers copies each prompt ``num_beams`` times and has the model read every copy, although
beams differ from the first written token on. Here hooks on the model take the copies out of that
first forward pass, and copy the key-value cache and the logits afterwards, by the operation with
which beam search itself moves beams about. The encoder of a seq2seq model runs once per input
anyway; its decoder's keys and values of what was read are saved.

Shapes: b prompts, k beams, t tokens, d width, v vocabulary.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers.utils.generic import ModelOutput

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
    """Has the first forward pass of one ``generate`` read each prompt once for all its beams.

    A model that is given, or keeps, something else than rows and a cache reads every copy, as
    without this.

    Args:
        model: A language model, or a wrapper around one (peft).
        num_beams: Copies that ``generate`` makes of each prompt, k.
    """
    reader = next((each for each in model.modules() if isinstance(each, PreTrainedModel)), None)
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
        """Returns the arguments with one row for each prompt, shape (b, ...) of (b * k, ...)."""
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
        """Returns the logits with k rows for each prompt, and copies the cache in its place."""
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
    """Returns how many rows all arguments have, b * k; None where that is not known of them all."""
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
