"""Recording layers' uses of their weights in the backward pass.

A layer rule hands each use of a weight (its input and the gradient of its output) to the recorder
as the backward pass meets it. Uses are kept by the parameter's name and not by module: a tied
weight has one gradient, whoever computes it.

A region (``separation.mapping``) runs a module example by example over weights that are expanded to
one for each example (``expanded``): ordinary autograd then gives each example's gradient. Inside
``torch.vmap`` a layer sees one example; its rule wants the batch. So the layer is called once, on
the inputs of all examples, and its output goes back into the map (``on_the_whole_batch``).
Attention and dropout that must draw one mask for all examples are called in the same way.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dpft.errors import RunError
from dpft.privacy.clipping.separation.reexecution import in_deterministic_mode
from dpft.privacy.clipping.trainable import TrainableParameters
from dpft.privacy.clipping.uses import GradientUse, Use


class Recorder:
    """Collects uses per parameter, and checks that each carries the batch in front.

    Keyed by the parameter's name and not by module: a tied weight has one gradient, whoever
    computes it.
    """

    def __init__(self, trainable: TrainableParameters) -> None:
        self.trainable = trainable
        self._uses: dict[str, list[Use]] = defaultdict(list)
        self._batch_size = 0
        self.receive: Callable[[str, Use], None] = self.keep
        """What an engine does with each use, in the middle of the backward pass."""
        self.token: Tensor | None = None
        """Inside a region that ``vmap`` maps over the batch, a tensor that it maps; None elsewhere.

        A layer needs it to be mapped itself, whatever its other inputs are."""
        self.looping = False
        """Whether a region is running that takes one example after another."""
        self.examples = 0
        """How many examples the model was last called with, for layers that meet one row for all.
        """

    def enter(self, examples: int) -> None:
        """Notes that the model is called with so many examples."""
        self.examples = examples

    def start(self, batch_size: int) -> None:
        """Begins a backward pass over ``batch_size`` examples; forgets anything left over."""
        self._batch_size = batch_size
        self._uses.clear()

    def record(self, layer: nn.Module, attribute: str, use: Use) -> None:
        """Takes one use of the parameter that a layer holds in one of its attributes."""
        self.record_as(self.trainable.name_at(layer, attribute), use)

    def record_as(self, name: str, use: Use) -> None:
        """Takes one use of the parameter called ``name``.

        Raises:
            RunError: The use does not carry the batch dimension, so that its examples' gradients
                cannot be told apart.
        """
        sizes = {len(value) for value in vars(use).values() if isinstance(value, Tensor)}
        rows = sizes.pop() if len(sizes) == 1 else -1
        if self._batch_size == 0:
            raise RunError(
                "backward must be left to the clipper inside its context, got a call of it outside "
                "of accumulate."
            )
        if rows != self._batch_size:
            raise RunError(
                f"parameter {name} was used with a leading dimension of {rows}, "
                f"expected the batch size {self._batch_size}: pass its layer inputs that carry the "
                "batch (for position embeddings: expanded position_ids), or, where a record has "
                "several rows, as in preference losses, name the rows' records as units."
            )
        self.receive(name, use)

    @contextmanager
    def inside(self, token: Tensor | None) -> Iterator[None]:
        """Marks what runs meanwhile as inside a region.

        Args:
            token: A tensor that ``vmap`` maps; None where the region loops over its examples.
        """
        self.token, self.looping = token, token is None
        try:
            yield
        finally:
            self.token, self.looping = None, False

    @property
    def in_region(self) -> bool:
        """Whether a region is running; one within it is part of it."""
        return self.looping or self.token is not None

    def keep(self, name: str, use: Use) -> None:
        """Holds a use until ``take``; the default of ``receive``."""
        self._uses[name].append(use)

    def take(self) -> dict[str, list[Use]]:
        """Returns what was recorded since the last call, by name, and forgets it."""
        taken = dict(self._uses)
        self._uses.clear()
        return taken

    def stop(self) -> None:
        """Ends a backward pass: uses are refused until the next one."""
        self._batch_size = 0


LayerForward = Callable[[Tensor], Tensor]


def on_the_whole_batch(
    layer: nn.Module, forward: LayerForward, recorder: Recorder, *, broadcast: bool = False
) -> LayerForward:
    """Returns a layer's recording forward, which meets the whole batch inside a region as outside.

    Where a region loops over its examples, its weights are recorded by other means, and the layer
    runs its own forward.

    Args:
        layer: The layer.
        forward: Its recording forward.
        recorder: What it reports to.
        broadcast: Whether its input, one row for all examples, is expanded to a row for each.
    """

    def run(*args: Tensor, **kwargs: Tensor) -> Tensor:
        (inputs,) = (*args, *kwargs.values())
        outputs: Tensor
        if recorder.looping:
            outputs = type(layer).forward(layer, inputs)
        elif recorder.token is not None:
            outputs = _WholeBatchLayer.apply(forward, recorder.token, inputs)
        elif broadcast and torch.is_grad_enabled():
            outputs = forward(row_for_each(inputs, recorder.examples))
        else:
            outputs = forward(inputs)
        return outputs

    return run


def row_for_each(inputs: Tensor, examples: int) -> Tensor:
    """Returns (examples, …) from (1, …), or from the ids of one sequence, shape (t,).

    What comes from a layer that was broadcast itself has its rows already.
    """
    rows = inputs.unsqueeze(0) if inputs.dim() == 1 else inputs
    return rows.expand(examples, *rows.shape[1:]) if len(rows) == 1 else rows


class MappedOnly(torch.autograd.Function):
    """A Function that exists in a mapped region alone, where its ``vmap`` is what is called."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        """Is never called."""
        raise AssertionError("only the mapped form of this Function is ever called")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keeps nothing."""


class _WholeBatchLayer(MappedOnly):
    """A layer with a rule inside a mapped region: called on all examples' inputs at once."""

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Sequence[int | None],
        layer: Callable[[Tensor], Tensor],
        token: Tensor,
        inputs: Tensor,
    ) -> tuple[Tensor, int]:
        return layer(rows_of(inputs, in_dims[2], info.batch_size)), 0


def with_one_mask(dropout: nn.Module, recorder: Recorder) -> LayerForward:
    """Returns a dropout layer's forward that in a region draws one mask for all examples.

    As the layer would outside of it, where its input has no batch dimension to draw along.
    """

    def run(inputs: Tensor) -> Tensor:
        own: LayerForward = partial(type(dropout).forward, dropout)
        if recorder.token is None or not dropout.training or in_deterministic_mode():
            return own(inputs)
        outputs: Tensor = _OneMask.apply(own, recorder.token, inputs)
        return outputs

    return run


class _OneMask(MappedOnly):
    """Dropout of every example's inputs by the same mask."""

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Sequence[int | None],
        dropout: LayerForward,
        token: Tensor,
        inputs: Tensor,
    ) -> tuple[Tensor, int]:
        rows = rows_of(inputs, in_dims[2], info.batch_size)
        return rows * dropout(torch.ones_like(rows[0])), 0


class WholeBatchAttention(TorchFunctionMode):
    """Runs attention on the whole batch as well: ``vmap`` would run its kernels one by one."""

    def __init__(self, token: Tensor) -> None:
        super().__init__()
        self._token = token

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs a function, attention over all examples at once."""
        options = dict(kwargs or {})
        if func is not F.scaled_dot_product_attention:
            return func(*args, **options)
        names = ("query", "key", "value", "attn_mask")
        named = dict(zip(names, args, strict=False)) | options
        if len(args) > len(names) or named["query"].dim() != 4:
            return func(*args, **options)
        tensors = [named.pop(name, None) for name in names]
        options = named | ({"dropout_p": 0.0} if in_deterministic_mode() else {})
        return _Attention.apply(self._token, partial(func, **options), *tensors)


class _Attention(MappedOnly):
    """Scaled dot-product attention of (n, h, t, d) for each example."""

    @staticmethod
    def vmap(
        info: Any,
        in_dims: Sequence[int | None],
        token: Tensor,
        attend: Callable[..., Tensor],
        *tensors: Tensor | None,
    ) -> tuple[Tensor, int]:
        *qkv, mask = tensors
        query, key, value = (
            rows_of(tensor, dim, info.batch_size).flatten(0, 1)
            for tensor, dim in zip(qkv, in_dims[2:5], strict=True)
            if tensor is not None
        )
        if mask is not None and (in_dims[5] is not None or mask.dim() == 4 and len(mask) > 1):
            rows = rows_of(mask, in_dims[5], info.batch_size)
            while rows.dim() < 5:
                rows = rows.unsqueeze(1)
            repeats = len(query) // info.batch_size
            mask = rows.expand(-1, repeats, -1, -1, -1).flatten(0, 1)
        outputs = attend(query, key, value, attn_mask=mask)
        return outputs.unflatten(0, (info.batch_size, -1)), 0


def rows_of(inputs: Tensor, dim: int | None, count: int) -> Tensor:
    """Returns (count, …); an input that all examples share is theirs one by one."""
    return inputs.expand(count, *inputs.shape) if dim is None else inputs.movedim(dim, 0)


def expanded(weight: Tensor, count: int, report: Callable[[GradientUse], None]) -> Tensor:
    """Returns a weight as (count, *shape), without a copy; its gradients go to ``report``.

    Ordinary autograd then gives each example's gradient, whatever is computed with the weight,
    as long as example i meets row i alone.
    """
    if not weight.requires_grad:
        return weight.expand(count, *weight.shape)
    rows: Tensor = _Expand.apply(weight, count, report)
    return rows


class _Expand(torch.autograd.Function):
    """A weight as (count, …), whose backward hands out the (count, …) gradient."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, count: int, report: Callable[[GradientUse], None]
    ) -> Tensor:
        ctx.report = report
        return weight.expand(count, *weight.shape)

    @staticmethod
    def backward(ctx: Any, backprops: Tensor) -> tuple[None, None, None]:
        ctx.report(GradientUse(backprops))
        return None, None, None
