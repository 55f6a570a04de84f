"""What is timed: one micro-batch of a model of published shape on mock inputs.

Weights are random and inputs are random tokens of one length, all of them labelled, as in Li et
al. 2022, Appendix G: neither changes what a step costs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from dpft.privacy.clipping.costs import DEFAULT_MEMORY_MB

LORA_RANK = 4
SMALL_GPT2 = {"vocab_size": 8192, "n_embd": 256, "n_layer": 4, "n_head": 4}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
SHAPES = ("gpt2", "gpt2_untied", "small_gpt2", "small_gpt2_untied", "roberta")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One configuration of a benchmark; a process of its own runs it."""

    worker: ClassVar[str] = "benchmarks.worker"
    engine: str
    """ordinary, an engine of dpft, opacus_hooks, opacus_ghost, noise or randn."""
    shape: str = "gpt2"
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
    memory_limit_bytes: int | None = None
    """What the process may hold, as ``benchmarks.memory`` counts it."""


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
    model = _architecture(workload.shape).to(workload.device).train()
    if workload.checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    if workload.method == "lora":
        model.requires_grad_(False)
        for block in model.transformer.h:
            block.attn.c_attn = LoRA(block.attn.c_attn).to(workload.device)
    elif workload.method == "bitfit":
        for name, parameter in model.named_parameters():
            parameter.requires_grad = name.endswith("bias")
    return model


def make_losses(model: PreTrainedModel, workload: Workload) -> Callable[[], Tensor]:
    """Returns what computes per-example losses, shape (b,), of one mock micro-batch."""
    size = (workload.batch_size, workload.length)
    ids = torch.randint(3, model.config.vocab_size, size, device=workload.device)
    if workload.shape == "roberta":
        labels = torch.randint(0, 2, size[:1], device=workload.device)
        compute = lambda: functional.cross_entropy(  # noqa: E731
            model(input_ids=ids).logits.float(), labels, reduction="none"
        )
    else:
        positions = torch.arange(workload.length, device=workload.device).expand(size)
        compute = _causal_losses(model, ids, positions.contiguous())
    if workload.precision == "fp32":
        return compute
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[workload.precision]

    def compute_in_half() -> Tensor:
        with torch.autocast(workload.device, dtype=dtype):
            return compute()

    return compute_in_half


class LoRA(nn.Module):
    """A frozen dense layer plus a trainable product of rank 4 (Hu et al. 2021)."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        inputs, outputs = layer.weight.shape
        self.layer = layer
        self.down = nn.Linear(inputs, LORA_RANK, bias=False)
        self.up = nn.Linear(LORA_RANK, outputs, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns the layer's output plus the adapter's."""
        outputs: Tensor = self.layer(inputs) + self.up(self.down(inputs))
        return outputs


def _architecture(shape: str) -> PreTrainedModel:
    if shape == "roberta":
        config = RobertaConfig(
            max_position_embeddings=514,
            type_vocab_size=1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        return RobertaForSequenceClassification(config)
    small = SMALL_GPT2 if shape.startswith("small") else {}
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    tied = not shape.endswith("untied")
    config = GPT2Config(**small, **tokens, **NO_DROPOUT, tie_word_embeddings=tied)
    return GPT2LMHeadModel(config)


def _causal_losses(model: PreTrainedModel, ids: Tensor, positions: Tensor) -> Callable[[], Tensor]:
    labels = functional.pad(ids[:, 1:], (0, 1), value=-100)

    def compute() -> Tensor:
        logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        nll = functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), reduction="none"
        )
        return nll.view_as(labels).sum(1) / (labels != -100).sum(1)

    return compute
