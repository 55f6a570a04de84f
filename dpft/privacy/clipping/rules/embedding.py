"""Embedding layers: each position adds its output gradient to one row of the weight.

Subclasses with a forward of their own (Gemma's scaled one, OPT's with an offset) run it as it is;
the look-up in the middle of it is what the rule takes over, as it is called there: a subclass need
not pass its own ``padding_idx`` on.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dpft.errors import InputError
from dpft.privacy.clipping.recorder import Recorder, Tap
from dpft.privacy.clipping.rules.linear import as_sequence
from dpft.privacy.clipping.rules.whole_batch import on_the_whole_batch
from dpft.privacy.clipping.uses import RowsUse


def embedding_forward(layer: nn.Embedding, recorder: Recorder) -> Callable[[Tensor], Tensor]:
    """Returns the look-up ``y = W[ids]``, recording its uses; ``padding_idx`` gets no gradient.

    Raises:
        InputError: The layer rescales its own weight or its gradient, which mixes examples.
    """
    check_plain(max_norm=layer.max_norm, scale_grad_by_freq=layer.scale_grad_by_freq)
    return look_up(layer, layer.padding_idx, recorder)


def look_up(
    layer: nn.Embedding, padding_idx: int | None, recorder: Recorder
) -> Callable[[Tensor], Tensor]:
    """Returns ``F.embedding`` on a layer's weight, recording its uses."""

    def record(ids: Tensor, backprops: Tensor, rows: int) -> None:
        if padding_idx is not None:
            row = padding_idx % rows
            backprops = backprops.masked_fill((ids == row).unsqueeze(-1), 0)
        recorder.record(layer, "weight", RowsUse(_by_example(ids), as_sequence(backprops), rows))

    tap = Tap(recorder, lambda ids, backprops: record(ids, backprops, len(layer.weight)))

    def forward(ids: Tensor) -> Tensor:
        if tap.is_used:
            return tap(F.embedding(ids, layer.weight.detach()), ids)
        recorder.look_up(layer, "weight", _by_example(ids))
        rows: Tensor = _Embedding.apply(ids, layer.weight, record)
        return rows

    return forward


def _by_example(ids: Tensor) -> Tensor:
    """Returns ids as (b, s)."""
    return ids.unsqueeze(1) if ids.dim() == 1 else ids.flatten(1)


def check_plain(*, max_norm: float | None, scale_grad_by_freq: bool) -> None:
    """Refuses a look-up that makes one example's gradient depend on the others.

    Raises:
        InputError: It rescales its weight or its gradient.
    """
    if max_norm is not None or scale_grad_by_freq:
        raise InputError(
            "an embedding must have max_norm=None and scale_grad_by_freq=False: both make one "
            "example's gradient depend on the others."
        )


class _Embedding(torch.autograd.Function):
    """A look-up whose backward hands out (ids, output gradient) instead of scattering."""

    @staticmethod
    def forward(
        ctx: Any, ids: Tensor, weight: Tensor, record: Callable[[Tensor, Tensor, int], None]
    ) -> Tensor:
        ctx.record, ctx.rows = record, len(weight)
        ctx.save_for_backward(ids)
        return F.embedding(ids, weight)

    @staticmethod
    def backward(ctx: Any, backprops: Tensor) -> tuple[None, None, None]:
        (ids,) = ctx.saved_tensors
        ctx.record(ids, backprops, ctx.rows)
        return None, None, None


def embedding_subclass_forward(
    layer: nn.Embedding, recorder: Recorder, *, broadcast: bool = False
) -> Callable[..., Any]:
    """Returns the subclass's forward with its ``F.embedding`` recorded.

    Args:
        layer: The layer.
        recorder: What it reports to.
        broadcast: Whether ids of one row for all examples are expanded to a row for each.
    """

    def embed(
        ids: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor:
        check_plain(max_norm=max_norm, scale_grad_by_freq=scale_grad_by_freq)
        rule = look_up(layer, padding_idx, recorder)
        return on_the_whole_batch(layer, rule, recorder, broadcast=broadcast)(ids)

    def forward(*args: Any, **kwargs: Any) -> Any:
        own = type(layer).forward
        if recorder.looping:
            return own(layer, *args, **kwargs)
        with _Intercept(layer.weight, embed):
            return own(layer, *args, **kwargs)

    return forward


class _Intercept(TorchFunctionMode):
    """Puts another look-up in the place of ``F.embedding`` on one weight."""

    def __init__(self, weight: Tensor, embed: Callable[..., Tensor]) -> None:
        super().__init__()
        self._weight = weight
        self._embed = embed

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        used = args[1] if len(args) > 1 else options.get("weight")
        if func is F.embedding and used is self._weight:
            return self._embed(*args, **options)
        return func(*args, **options)
