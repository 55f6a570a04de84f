"""What is timed: one micro-batch of a model of published shape on mock inputs.

Weights are random and inputs are random tokens of one length, all of them labeled, as in Li et
al. 2022, Appendix G: neither changes what a step costs.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from benchmarks.shapes import SHAPES
from dpft.models.loading import checkpoint_activations
from dpft.privacy.clipping.choices import DEFAULT_MEMORY_MB

LORA_RANK = 4


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
    memory_mb: int = DEFAULT_MEMORY_MB
    """As ``privacy.clipper_memory_mb``."""
    checkpointing: bool = False
    """Whether blocks recompute their activations in the backward pass."""
    accumulate: int | None = None
    """Micro-batches of one update, timed whole, with noise and optimizer; None times one alone."""
    parallel: str = "none"
    """none, or fsdp: with dpft's shards for a private engine, with torch's alone for ordinary."""
    memory_limit_bytes: int | None = None
    """What the process may hold, as ``benchmarks.memory`` counts it."""

    @property
    def is_checked(self) -> bool:
        """Whether a clipper of dpft proves its first micro-batch and checks some later ones."""
        return self.engine not in ("ordinary", "noise", "randn") and "opacus" not in self.engine


@dataclass(frozen=True, kw_only=True)
class WholeRun:
    """One run of ``dpft train``; a process of its own takes its steps, one at a time."""

    worker: ClassVar[str] = "benchmarks.run_worker"
    memory_limit_bytes: ClassVar[None] = None
    words: tuple[str, ...]
    """As on the command line."""
    threads: int = 2


def make_model(workload: Workload) -> PreTrainedModel:
    """Returns the model in training mode, the method's parameters trainable."""
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


def make_losses(model: PreTrainedModel, workload: Workload) -> Callable[[], Tensor]:
    """Returns what computes per-example losses, shape (b,), of one mock micro-batch."""
    shape = SHAPES[workload.shape]
    compute: Callable[[], Tensor]
    if shape.image_size is not None:
        compute = _image_losses(model, workload, shape.image_size)
    else:
        compute = _text_losses(model, workload, classifies=shape.classifies)
    if workload.precision == "fp32":
        return compute
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[workload.precision]

    def compute_in_half() -> Tensor:
        with torch.autocast(workload.device, dtype=dtype):
            return compute()

    return compute_in_half


def _image_losses(model: PreTrainedModel, workload: Workload, size: int) -> Callable[[], Tensor]:
    images = torch.randn(workload.batch_size, 3, size, size, device=workload.device)
    labels = torch.randint(0, 2, (workload.batch_size,), device=workload.device)
    return lambda: functional.cross_entropy(
        model(pixel_values=images).logits.float(), labels, reduction="none"
    )


def _text_losses(
    model: PreTrainedModel, workload: Workload, *, classifies: bool
) -> Callable[[], Tensor]:
    size = (workload.batch_size, workload.length)
    ids = torch.randint(3, model.config.vocab_size, size, device=workload.device)
    if classifies:
        labels = torch.randint(0, 2, size[:1], device=workload.device)
        return lambda: functional.cross_entropy(
            model(input_ids=ids).logits.float(), labels, reduction="none"
        )
    positions = torch.arange(workload.length, device=workload.device).expand(size)
    return _causal_losses(model, ids, positions.contiguous())


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
        """Returns the layer's output plus the adapter's."""
        outputs: Tensor = self.layer(inputs) + self.up(self.down(inputs))
        return outputs


def _adapt(model: nn.Module, names: Collection[str]) -> None:
    """Gives each dense layer of one of these last names an adapter."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in names:
                setattr(module, name, LoRA(child))


def _causal_losses(model: PreTrainedModel, ids: Tensor, positions: Tensor) -> Callable[[], Tensor]:
    labels = functional.pad(ids[:, 1:], (0, 1), value=-100)

    def compute() -> Tensor:
        logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        nll = functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), reduction="none"
        )
        return nll.view_as(labels).sum(1) / (labels != -100).sum(1)

    return compute
