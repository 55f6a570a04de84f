"""Small models of each kind, trained for a few private steps and read back, and published sizes."""

from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from dpft.methods.base import METHODS, Method
from dpft.privacy.clipping import PerExampleClipper
from tests.privacy.clipping.architectures.batches import Examples, Kind, examples
from tests.privacy.clipping.architectures.zoo import EVERY

NAMES = {
    "gpt2": "gpt2-tied",
    "bert-masked-lm": "bert-masked-lm",
    "bert-classification": "bert-classification",
    "t5": "t5",
}
"""The kinds of model that every method is tried on, and their names in the clipper's zoo."""
BERT_BASE = ("BertConfig", {"vocab_size": 30522})
ROBERTA_BASE = (
    "RobertaConfig",
    {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1},
)
LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}


def published(config: str, options: dict, auto: str = "AutoModel") -> hf.PreTrainedModel:
    """A model of published size, without storage."""
    with torch.device("meta"):
        return getattr(hf, auto).from_config(getattr(hf, config)(**options))


def share(method: Method, model: hf.PreTrainedModel) -> float:
    """Trainable parameters in percent of those the model has before the method adds to it."""
    total = sum(parameter.numel() for parameter in model.parameters())
    prepared = method.prepare(model)
    return 100 * sum(p.numel() for p in prepared.parameters() if p.requires_grad) / total


def fresh(shape: str) -> hf.PreTrainedModel:
    """A small float32 model with random weights far from symmetric, the same at each call."""
    return EVERY[NAMES.get(shape, shape)].build(dtype=torch.float32)


def auto_class(shape: str) -> Any:
    return getattr(hf, EVERY[NAMES.get(shape, shape)].auto)


def loss_of(shape: str) -> Kind:
    return EVERY[NAMES.get(shape, shape)].kind


def prepared(method: Method, shape: str) -> nn.Module:
    """A prepared model whose trainable weights are far from where the method starts them."""
    torch.manual_seed(1)
    model = method.prepare(fresh(shape)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def trained_names(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def recipe(name: str, **settings) -> Method:
    return METHODS.named(name)(name=name, **settings)


def train(model: nn.Module, kind: Kind, steps: int = 3) -> None:
    """A few steps of descent along the clipped sum."""
    for step in range(steps):
        model.zero_grad()
        batch = examples(seed=step)
        with PerExampleClipper(model, 0.5) as clipper:
            clipper.accumulate(lambda batch=batch: kind(model, batch))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(0.5 * parameter.grad)


@torch.no_grad()
def logits(model: nn.Module, kind: Kind, batch: Examples | None = None) -> Tensor:
    """What the model computes for a batch."""
    seen: list[Tensor] = []
    handle = model.register_forward_hook(lambda *call: seen.append(call[2].logits))
    kind(model, batch or examples())
    handle.remove()
    return seen[0]


def read_back(method: Method, model: nn.Module, shape: str, folder: Path) -> nn.Module:
    """Saves a model, and loads it as a user would."""
    method.save(model, folder)
    if method.saves_whole_model:
        return auto_class(shape).from_pretrained(folder).eval()
    return method.restore(fresh(shape), folder).eval()
