"""LoRA: a low-rank change beside chosen weight matrices (Hu et al. 2021, arXiv 2106.09685).

A frozen weight W acts as ``W + alpha / rank * B A``; A (rank, d) is random, B (p, rank) is zero, so
training starts at the base model.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from dpft.errors import InputError
from dpft.methods.base import METHODS, original_name
from dpft.methods.peft_method import PeftMethod
from dpft.text_parts import idle_modules, is_inside

if TYPE_CHECKING:
    from peft import PeftConfig, TaskType
    from torch import nn
    from transformers import PreTrainedModel

PUBLISHED_SCALING = 8.0
"""alpha / rank of Hu et al. 2021 for GPT-2 on E2E: alpha 32 at rank 4."""
HEADS = ("classifier", "score")
"""Modules that peft keeps whole in every sequence classifier, and never changes by LoRA."""


@METHODS.register("lora")
@dataclass(frozen=True, kw_only=True)
class Lora(PeftMethod):
    """Trains low-rank changes of the targeted layers (147,456 numbers for GPT-2 at rank 4)."""

    rank: int = 4
    """Rank of each change."""
    alpha: float | None = None
    """Scale of the change, over rank; null takes 8 times rank, Hu et al.'s for GPT-2 on E2E."""
    dropout: float = 0.0
    """Dropout on the input of the change, in [0, 1)."""
    targets: tuple[str, ...] | None = None
    """Names, or last parts of names, of the layers to change; null takes peft's for the model."""

    own_parts: ClassVar[str] = "lora_"
    remedy: ClassVar[str] = "choose other layers with method.targets"

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise InputError(f"method.rank must be at least 1, got {self.rank}; try 4.")
        if self.alpha is not None and not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise InputError(f"method.alpha must be positive, got {self.alpha}; null takes 8 rank.")
        if not 0 <= self.dropout < 1:
            raise InputError(f"method.dropout must be in [0, 1), got {self.dropout}; try 0.")
        if self.targets is not None and not self.targets:
            raise InputError("method.targets must name a layer, got none; null takes the default.")

    def configure(
        self, model: "PreTrainedModel", task: "TaskType | None", new_modules: list[str]
    ) -> "PeftConfig":
        """Returns the config for this model.

        Raises:
            InputError: A target is no layer that LoRA changes, or the rank is larger than one.
        """
        from peft import LoraConfig, TaskType
        from transformers.pytorch_utils import Conv1D

        saved_whole = [*new_modules, *(HEADS if task == TaskType.SEQ_CLS else ())]
        layers = self._layers(model, saved_whole)
        alpha = PUBLISHED_SCALING * self.rank if self.alpha is None else self.alpha
        return LoraConfig(
            task_type=task,
            r=self.rank,
            lora_alpha=cast(int, alpha),
            lora_dropout=self.dropout,
            target_modules=sorted(self._targets(model)),
            # Conv1D keeps its weight as (in, out)
            fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in layers.values()),
            modules_to_save=new_modules or None,
            exclude_modules=_pattern(idle_modules(model)),
        )

    def merge(self, model: "PreTrainedModel") -> "PreTrainedModel":
        """Returns the base model with the change added to its weights, free of peft.

        Raises:
            InputError: A changed weight is another layer's too, which the sum would change.
        """
        from peft.tuners.lora import LoraLayer

        owned = [
            parameter
            for module in model.modules()
            for _, parameter in module.named_parameters(recurse=False)
        ]
        shared = {parameter for parameter, uses in Counter(owned).items() if uses > 1}
        for name, layer in model.named_modules():
            if isinstance(layer, LoraLayer) and layer.get_base_layer().weight in shared:
                raise InputError(
                    "merge=true needs LoRA on weights that no other layer shares, got"
                    f" {original_name(name)}; keep the adapter as it is."
                )
        adapted: Any = model
        return cast("PreTrainedModel", adapted.merge_and_unload())

    def _targets(self, model: "PreTrainedModel") -> tuple[str, ...]:
        if self.targets is not None:
            return self.targets
        from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as DEFAULT_TARGETS

        kind = model.config.model_type
        if kind not in DEFAULT_TARGETS:
            raise InputError(
                f"method.targets has no default for a {kind} model, got null; name some of"
                f" {_last_parts(model)}."
            )
        return tuple(DEFAULT_TARGETS[kind])

    def _layers(self, model: "PreTrainedModel", saved_whole: list[str]) -> "dict[str, nn.Module]":
        """Returns the targeted layers by name, each fit for this rank."""
        found: dict[str, nn.Module] = {}
        idle = idle_modules(model)
        for target in self._targets(model):
            matches = {
                name: module
                for name, module in model.named_modules()
                if f".{name}".endswith(f".{target}")
                and not any(f".{whole}." in f".{name}." for whole in saved_whole)
                and not is_inside(name, idle)
            }
            if not matches or not all(map(_can_change, matches.values())):
                raise InputError(
                    f"method.targets must name layers that LoRA can change, got {target!r}; in"
                    f" {type(model).__name__} they are {_last_parts(model)}."
                )
            found.update(matches)
        for name, layer in found.items():
            largest = min(_sides(layer))
            if self.rank > largest:
                raise InputError(
                    f"method.rank must be at most {largest}, the smaller side of {name}, got"
                    f" {self.rank}; lower it, or leave that layer out of method.targets."
                )
        return found


def _can_change(layer: "nn.Module") -> bool:
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    return isinstance(layer, nn.Linear | nn.Embedding | Conv1D)


def _pattern(modules: "Sequence[str]") -> str | None:
    """Return peft's regular expression of modules and everything within; None for no module."""
    return rf"({'|'.join(map(re.escape, modules))})(\..*)?" if modules else None


def _sides(layer: "nn.Module") -> "Sequence[int]":
    """Returns the shape of the matrix that a layer stands for, whatever holds its numbers."""
    from torch import nn

    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features
    shape: Sequence[int] = cast(Any, layer).weight.shape
    return shape


def _last_parts(model: "PreTrainedModel") -> str:
    """Returns the last parts of the names of the layers that LoRA can change."""
    idle = idle_modules(model)
    names = (
        name
        for name, module in model.named_modules()
        if _can_change(module) and not is_inside(name, idle)
    )
    return ", ".join(sorted({name.rpartition(".")[2] for name in names}))
