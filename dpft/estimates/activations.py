"""Estimate of the activation memory of a micro-batch by a forward pass on fake tensors.

Fake tensors have shapes but no values. A run of the model on them shows exactly which tensors
autograd saves for the backward pass, for example attention scores, dropout masks and the inputs of
gated layers. Each storage counts once, and parameters do not count. Fused attention saves queries,
keys, values and the output (Dao 2023, arXiv 2307.08691). With dropout, attention also saves its
scores.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from dpft.data.batches import Layout
from dpft.models.losses import per_example_losses
from dpft.parallel.sharding import repeated_blocks
from dpft.training.synthetic_batches import CAUSAL_TEXT, synthetic_batch
from dpft.training.training_config import autocast

CPU = torch.device("cpu")
NUMBER_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class LayerUse:
    """Call of a trainable layer, for which a clipper keeps the input and the output gradient."""

    name: str
    """Name of the layer's largest trainable parameter."""
    numbers: int
    """Number of elements of that parameter."""
    inputs: int
    """Bytes of the layer's input; 0 if an earlier call had the same input."""
    outputs: int
    """Bytes of the layer's output, and therefore of the gradient of the output."""
    is_formed: bool
    """Whether the clipper keeps per-example gradients of the layer instead of inputs and output
    gradients."""

    def of_rows(self, rows: int, before: int) -> "LayerUse":
        """Return the same call for ``rows`` rows instead of ``before`` rows."""
        return replace(
            self,
            inputs=self.inputs * rows // before,
            outputs=self.outputs * rows // before,
        )


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Activations that one forward pass saves for the backward pass.

    Attributes:
        rows: Number of examples in the micro-batch.
        saved: Bytes that are saved for the backward pass. If the model recomputes its blocks, these
            are the inputs of the blocks, the tensors of the largest block, and the tensors outside
            blocks.
        largest: Bytes of the largest layer output, such as the logits over the vocabulary.
        uses: Calls of trainable layers, in order.
    """

    rows: int
    saved: int
    largest: int
    uses: Sequence[LayerUse]

    def of_rows(self, rows: int) -> "Activations":
        """Return the activations of a micro-batch with another number of rows, in proportion."""
        if rows == self.rows:
            return self
        return Activations(
            rows=rows,
            saved=self.saved * rows // self.rows,
            largest=self.largest * rows // self.rows,
            uses=[use.of_rows(rows, self.rows) for use in self.uses],
        )


def trace_activations(
    model: nn.Module,
    *,
    rows: int,
    length: int,
    layout: Layout = CAUSAL_TEXT,
    precision: str = "fp32",
    recomputes: bool = False,
) -> Activations:
    """Return the activations that a micro-batch of records of the maximum length would keep."""
    trace, fake = _Trace(model), FakeTensorMode(allow_non_fake_inputs=True)
    for module in model.modules():
        if hasattr(module, "gradient_checkpointing"):
            module.gradient_checkpointing = False  # type: ignore[assignment]
    with fake:
        model.to_empty(device="cpu")
    trace.ignore(model)
    batch = synthetic_batch(model, rows, length, layout=layout, ragged=False)
    model.train()
    with fake, trace.watching(model), autocast(precision, CPU):
        per_example_losses(model, batch)
    return trace.activations(rows, recomputes=recomputes)


def guessed_activations(model: nn.Module, *, rows: int, length: int) -> Activations:
    """Return a guess of the result of ``trace_activations``, for a model that needs values to run.

    The guess assumes that each layer saves its input and its output.
    """
    layers = [module for module in model.modules() if not isinstance(module, nn.Embedding)]
    weights = [weight for layer in layers for weight in layer.parameters(recurse=False)]
    shapes = [weight.shape[:2] for weight in weights if weight.dim() >= 2]
    largest = max(max(shape) for shape in shapes)
    tokens = rows * length * NUMBER_BYTES
    saved = tokens * (sum(map(sum, shapes)) + largest)
    return Activations(rows=rows, saved=saved, largest=tokens * largest, uses=())


class _Trace(TorchFunctionMode):
    """Counter of the tensors that a forward pass saves, by the block that saves them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        names = {parameter: name for name, parameter in model.named_parameters()}
        names_and_shapes = {}
        for module in model.modules():
            trainable = [p for p in module.parameters(recurse=False) if p.requires_grad]
            if trainable:
                largest = max(trainable, key=lambda parameter: parameter.numel())
                names_and_shapes[module] = names[largest], tuple(largest.shape)
        self._names = names_and_shapes
        self._blocks = repeated_blocks(model)
        self._block: int | None = None
        self._given = [0] * len(self._blocks)
        self._storages: dict[int, tuple[Tensor, int | None]] = {}
        self._inputs: set[int] = set()
        self._parameters: set[int] = set()
        self._largest = 0
        self._uses: list[LayerUse] = []

    def ignore(self, model: nn.Module) -> None:
        """Exclude the storages of the parameters from the count."""
        self._parameters = {_storage(parameter) for parameter in model.parameters()}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is F.scaled_dot_product_attention and _is_fused(args, kwargs):
            return _FusedAttention.apply(*args[:3], *(kwargs[n] for n in QKV[len(args) :]))
        return func(*args, **kwargs)

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Count saved tensors inside the block."""
        handles = [m.register_forward_hook(self._called) for m in model.modules()]
        for number, block in enumerate(self._blocks):
            handles.append(block.register_forward_pre_hook(self._entering(number)))
            handles.append(block.register_forward_hook(self._left))
        try:
            with self, saved_tensors_hooks(self._save, lambda saved: saved):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def activations(self, rows: int, *, recomputes: bool) -> Activations:
        """Return the counted activations."""
        outside, by_block = 0, dict.fromkeys(range(len(self._blocks)), 0)
        for tensor, block in self._storages.values():
            if block is None:
                outside += _bytes(tensor)
            else:
                by_block[block] += _bytes(tensor)
        if recomputes and by_block:
            saved = outside + sum(self._given) + max(by_block.values())
        else:
            saved = outside + sum(by_block.values())
        return Activations(rows=rows, saved=saved, largest=self._largest, uses=self._uses)

    def _save(self, tensor: Tensor) -> Tensor:
        key = _storage(tensor)
        if key not in self._parameters:
            self._storages.setdefault(key, (tensor, self._block))
        return tensor

    def _entering(self, number: int) -> Any:
        def enter(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            self._block = number
            self._given[number] = sum(
                _bytes(tensor) for tensor in inputs if isinstance(tensor, Tensor)
            )

        return enter

    def _left(self, *_: object) -> None:
        self._block = None

    def _called(self, module: nn.Module, inputs: tuple[Any, ...], outcome: Any) -> None:
        if not isinstance(outcome, Tensor) or not inputs or not isinstance(inputs[0], Tensor):
            return
        if any(True for _ in module.children()):
            return
        self._largest = max(self._largest, _bytes(outcome))
        if module not in self._names:
            return
        name, shape = self._names[module]
        is_counted = _storage(inputs[0]) in self._inputs
        self._inputs.add(_storage(inputs[0]))
        is_product = len(shape) == 2 and inputs[0].is_floating_point()
        steps = max(1, outcome[0].numel() // outcome.shape[-1]) if is_product else 0
        self._uses.append(
            LayerUse(
                name=name,
                numbers=prod(shape),
                inputs=0 if is_counted or not is_product else _bytes(inputs[0]),
                outputs=_bytes(outcome),
                is_formed=not is_product or prod(shape) <= steps * sum(shape),
            )
        )


QKV = ("query", "key", "value")


def _is_fused(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a fused kernel computes attention: no dropout, and no trainable mask."""
    names = dict(zip((*QKV, "attn_mask", "dropout_p"), args, strict=False)) | dict(kwargs)
    mask = names.get("attn_mask")
    return not names.get("dropout_p") and not (mask is not None and mask.requires_grad)


class _FusedAttention(torch.autograd.Function):
    """Fused attention with the right shapes; its kernel recomputes scores in the backward pass."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        outcome = query.new_empty(*query.shape[:-1], value.shape[-1])
        ctx.save_for_backward(query, key, value, outcome)
        return outcome

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise NotImplementedError


def _storage(tensor: Tensor) -> int:
    place: int = tensor.untyped_storage()._cdata
    return place


def _bytes(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()
