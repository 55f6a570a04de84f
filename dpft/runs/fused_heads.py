"""Whether a run takes its losses of a fused head: ``train.fused_head``, from public keys."""

import logging

import torch
from transformers import PreTrainedModel

from dpft.config.schema import PlanConfig, TrainConfig
from dpft.errors import InputError
from dpft.fused_head import fuse_head
from dpft.kinds import CAUSAL, SEQ2SEQ, TEXTS, Head
from dpft.models.architecture import Architecture
from dpft.privacy.clipping.wide import WIDE_ROWS
from dpft.training.training_config import AUTO

PLAIN = frozenset(
    ("gpt2", "gpt_neo", "gpt_neox", "llama", "mistral", "qwen2", "qwen3", "gemma", "opt", "t5")
)
"""Model types that return what their head gives them as their logits, nothing done to it."""
logger = logging.getLogger(__name__)


def with_fused_head(
    model: PreTrainedModel, config: TrainConfig, architecture: Architecture, head: Head
) -> PreTrainedModel:
    """Returns the model, its head one that also gives losses where the configuration says so.

    Args:
        model: After ``Method.prepare``; it may be on ``meta``.
        config: Of the run.
        architecture: Of the model.
        head: What it answers with.

    Raises:
        InputError: It is to be fused and cannot be.
    """
    wanted = config.train.fused_head
    if wanted is False:
        return model
    obstacle = _obstacle(config, architecture, head)
    if obstacle is None and wanted == AUTO and not (_is_measured(config) and _is_large(model)):
        return model
    if obstacle is None and fuse_head(model) is None:
        obstacle = "a dense head without bias, as the model has it from its checkpoint"
    if obstacle is not None and wanted is True:
        raise InputError(f"train.fused_head=true needs {obstacle}; set train.fused_head=auto.")
    return model


def _obstacle(config: TrainConfig, architecture: Architecture, head: Head) -> str | None:
    """Returns what a fused head needs and this run has not, with what it has; None for nothing."""
    kind, guarantee = architecture.read.model_type, config.privacy.guarantee
    if head.kind not in (CAUSAL, SEQ2SEQ) or config.task.answers != TEXTS:
        return f"a task whose answers are texts, got task={config.task.name}"
    if kind not in PLAIN:
        return f"a model of type {', '.join(sorted(PLAIN))}, got {kind}"
    if config.parallel.shards_model:
        return "the whole model in each process, got parallel=fsdp"
    if config.train.precision == "fp16":
        return "train.precision=fp32 or bf16, got fp16"
    if guarantee is None:
        return None
    if guarantee.engine == "loop":
        return "another engine than privacy.engine=loop"
    if guarantee.has_units:
        return f"a record for each privacy unit, got privacy.unit={guarantee.unit}"
    return None


def _is_measured(config: TrainConfig) -> bool:
    """Whether the run is on a processor, where the time of fused heads is known.

    A plan that is given a device's memory is of a machine that is not this one.
    """
    if isinstance(config, PlanConfig) and config.plan.device_memory_gb is not None:
        return False
    return config.train.device == "cpu" or not torch.cuda.is_available()


def _is_large(model: PreTrainedModel) -> bool:
    """Whether a model's vocabulary is so large that its logits are most of what it computes."""
    head = model.get_output_embeddings()
    return head is not None and len(head.weight) >= max(WIDE_ROWS, head.weight.shape[1] + 1)
