"""Subclasses of embeddings with a forward of their own: Gemma's scaled one, OPT's with an offset.

Their forward runs as it is; the look-up in the middle of it is what the rule takes over, as it is
called there: a subclass need not pass its own ``padding_idx`` on.
"""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dpft.privacy.clipping.recorder import Recorder
from dpft.privacy.clipping.rules.embedding import check_plain, look_up
from dpft.privacy.clipping.rules.whole_batch import on_the_whole_batch


def embedding_subclass_forward(layer: nn.Embedding, recorder: Recorder) -> Callable[..., Any]:
    """Returns the subclass's forward with its ``F.embedding`` recorded."""

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
        return on_the_whole_batch(layer, look_up(layer, padding_idx, recorder), recorder)(ids)

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
