"""What is timed: one micro-batch of a model of published shape on mock inputs.

Weights are random and inputs are random tokens of one length, all of them labeled, as in Li et
al. 2022, Appendix G: neither changes what a step costs.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from benchmarks.shapes import SHAPES
from dpft.constants import IGNORED_LABEL
from dpft.models.loading import checkpoint_activations

LORA_RANK = 4
SYNTHETIC_LENGTHS = ((5, 9, 2, 7), (16, 3, 11))
"""Tokens of the rows of the synthetic batches of a clipper's self-check."""
Batch = Mapping[str, Tensor]
HALF_PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One configuration of a benchmark; a process of its own runs it."""

    worker: ClassVar[str] = "benchmarks.worker"
    engine: str
    """ordinary, an engine of dpft, opacus_hooks, opacus_ghost, noise or randn."""
    shape: str = "gpt2"
    """Of ``SHAPES``."""
    method: str = "full"
    batch_size: int = 8
    length: int = 100
    precision: str = "fp32"
    device: str = "cpu"
    threads: int = 2
    checkpointing: bool = False
    """Whether blocks recompute their activations in the backward pass."""
    accumulate: int | None = None
    """Micro-batches of one update, timed whole, with noise and optimizer; None times one alone."""
    parallel: str = "none"
    """none, or fsdp: with dpft's shards for a private engine, with torch's alone for ordinary."""
    memory_limit_bytes: int | None = None
    """What the process may hold, as ``benchmarks.memory`` counts it."""

    @property
    def is_private(self) -> bool:
        """Whether dpft's clipper runs it."""
        return self.engine not in ("ordinary", "noise", "randn") and "opacus" not in self.engine

    @property
    def autocast(self) -> torch.dtype | None:
        """The dtype of autocast; None for none."""
        return HALF_PRECISION.get(self.precision)


@dataclass(frozen=True, kw_only=True)
class WholeRun:
    """One run of ``dpft train``; a process of its own takes its steps, one at a time."""

    worker: ClassVar[str] = "benchmarks.run_worker"
    memory_limit_bytes: ClassVar[None] = None
    words: tuple[str, ...]
    """As on the command line."""
    threads: int = 2


def make_model(workload: Workload) -> PreTrainedModel:
    """Return the model in training mode, the method's parameters trainable."""
    torch.manual_seed(0)
    shape = SHAPES[workload.shape]
    with torch.device(workload.device):
        model = shape.build().train()
    if workload.checkpointing:
        checkpoint_activations(model)
    if workload.method == "lora":
        model.requires_grad_(False)
        _adapt(model, shape.adapted)
    elif workload.method == "bitfit":
        for name, parameter in model.named_parameters():
            parameter.requires_grad = name.endswith("bias")
    return model


def losses_of(model: Any, batch: Batch) -> Tensor:
    """Return per-example losses, shape (b,): the mean over a text's tokens, or that of a class.

    Args:
        model: A model of ``SHAPES``.
        batch: Its inputs and ``labels``, shape (b,) or (b, t); labels of texts are shifted.
    """
    inputs = {name: values for name, values in batch.items() if name != "labels"}
    labels = batch["labels"]
    if labels.dim() == 1:
        return functional.cross_entropy(model(**inputs).logits.float(), labels, reduction="none")
    logits = model(**inputs, use_cache=False).logits
    nll = functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="none")
    return nll.view_as(labels).sum(1) / (labels != IGNORED_LABEL).sum(1)


def make_batch(workload: Workload, model: PreTrainedModel) -> Batch:
    """Return one mock micro-batch, all of its rows of the same length."""
    return _batch(workload, model, [workload.length] * workload.batch_size)


def synthetic_batches(workload: Workload, model: PreTrainedModel) -> list[Batch]:
    """Return the batches of a clipper's self-check; texts with labels have ragged rows."""
    return [_batch(workload, model, lengths) for lengths in SYNTHETIC_LENGTHS]


def _batch(workload: Workload, model: PreTrainedModel, lengths: list[int] | tuple[int, ...]) -> Any:
    shape, rows, device = SHAPES[workload.shape], len(lengths), workload.device
    classes = torch.randint(0, 2, (rows,), device=device)
    if shape.image_size is not None:
        size = (rows, 3, shape.image_size, shape.image_size)
        return {"pixel_values": torch.randn(size, device=device), "labels": classes}
    ids = torch.randint(3, model.config.vocab_size, (rows, max(lengths)), device=device)
    if shape.classifies:
        return {"input_ids": ids, "labels": classes}
    positions = torch.arange(max(lengths), device=device).expand_as(ids).contiguous()
    labels = functional.pad(ids[:, 1:], (0, 1), value=IGNORED_LABEL)
    is_padding = positions >= torch.tensor(lengths, device=device).unsqueeze(1) - 1
    labels = labels.masked_fill(is_padding, IGNORED_LABEL)
    return {"input_ids": ids, "position_ids": positions, "labels": labels}


def make_losses(model: Any, workload: Workload) -> Callable[[], Tensor]:
    """Return a function that computes the losses of one mock micro-batch, shape (b,)."""
    batch = make_batch(workload, model)

    def compute() -> Tensor:
        dtype = workload.autocast
        with torch.autocast(workload.device, dtype=dtype, enabled=dtype is not None):
            return losses_of(model, batch)

    return compute


class LoRA(nn.Module):
    """A frozen dense layer plus a trainable product of rank 4 (Hu et al. 2021)."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        # A Conv1D's weight has the inputs first.
        inputs, outputs = layer.weight.shape[:: -1 if isinstance(layer, nn.Linear) else 1]
        self.layer, where = layer, layer.weight.device
        self.down = nn.Linear(inputs, LORA_RANK, bias=False, device=where)
        self.up = nn.Linear(LORA_RANK, outputs, bias=False, device=where)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the layer's output plus the adapter's."""
        outputs: Tensor = self.layer(inputs) + self.up(self.down(inputs))
        return outputs


def _adapt(model: nn.Module, names: Collection[str]) -> None:
    """Give each dense layer of one of these last names an adapter."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in names:
                setattr(module, name, LoRA(child))
