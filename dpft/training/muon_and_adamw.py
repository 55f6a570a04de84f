"""torch's Muon and AdamW as one optimizer, and which parameters are whose.

A file of its own, so that the configuration of an optimizer can be read without importing torch.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Muon, Optimizer
from transformers import PreTrainedModel

from dpft.methods.base import input_embeddings


class MuonAndAdamW(Optimizer):
    """Moves some matrices by Muon and everything else by AdamW.

    Both have this one's state and groups, so a schedule and a checkpoint see one optimizer.
    """

    def __init__(
        self,
        matrices: Sequence[nn.Parameter],
        others: Sequence[nn.Parameter],
        *,
        lr: float,
        weight_decay: float,
        matrix_settings: Mapping[str, Any],
        other_settings: Mapping[str, Any],
    ) -> None:
        """Makes the optimizer.

        Args:
            matrices: Moved by Muon; at least one.
            others: Moved by AdamW; may be none.
            lr: Of both.
            weight_decay: Of both.
            matrix_settings: Of torch's Muon.
            other_settings: Of torch's AdamW.
        """
        common: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        parts: list[Optimizer] = [
            Muon(matrices, **common, **matrix_settings, adjust_lr_fn="match_rms_adamw")
        ]
        if others:
            parts.append(AdamW(others, **common, **other_settings))
        super().__init__([group for part in parts for group in part.param_groups], common)
        for part in parts:
            part.state = self.state
        self._parts = parts

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Moves every parameter that has a gradient."""
        assert closure is None
        for part in self._parts:
            part.step()


def tables_and_heads(model: nn.Module) -> set[nn.Parameter]:
    """Returns what is no hidden layer: tables of embeddings, and all that stands behind the body.

    Args:
        model: A Hugging Face model, or one that peft has wrapped.
    """
    named: Any = model
    whole = named.get_base_model() if hasattr(model, "peft_config") else named
    apart = input_embeddings(model)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            apart.update(module.parameters(recurse=False))
    head = whole.get_output_embeddings() if isinstance(whole, PreTrainedModel) else None
    if head is not None:
        apart.update(head.parameters())
    body = getattr(whole, "base_model", whole)
    if body is not whole:
        inside = set(body.parameters())
        apart.update(p for p in whole.parameters() if p not in inside)
    return apart
