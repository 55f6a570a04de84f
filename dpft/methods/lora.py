"""LoRA: trainable low-rank updates of chosen weight matrices (Hu et al. 2021, arXiv 2106.09685).

A frozen weight W acts as ``W + alpha / rank * B A``. A (rank, d) is random and B (p, rank) is zero,
so training starts at the base model. Rank-stabilized LoRA divides alpha by the square root of the
rank (Kalajdzievski 2023, arXiv 2312.03732).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from pydantic import Field

from dpft.errors import InputError
from dpft.methods.base import METHODS, original_name
from dpft.methods.peft_method import PeftMethod
from dpft.non_text_modules import idle_modules
from dpft.strict_model import AtLeastOne, Positive

if TYPE_CHECKING:
    from peft import PeftConfig, TaskType
    from peft.tuners.lora import LoraLayer
    from torch import nn
    from transformers import PreTrainedModel

PUBLISHED_SCALING = 8.0
"""Value of alpha / rank in Hu et al. 2021 for GPT-2 on E2E: alpha 32 at rank 4."""
STABILIZED_ALPHA = PUBLISHED_SCALING * math.sqrt(4)
"""Alpha of rank-stabilized LoRA that gives the scale of Hu et al. 2021 at their rank."""
HEADS = ("classifier", "score")
"""Modules of sequence classifiers that peft trains and saves as a whole, without LoRA."""
ALL_LINEAR: Literal["all-linear"] = "all-linear"
"""peft's name for all linear layers except the output head."""
DEFAULT_TARGETS = (
    ("q_proj", "v_proj"),
    ("query", "value"),
    ("query_proj", "value_proj"),
    ("q", "v"),
    ("q_lin", "v_lin"),
    ("q_head", "v_head"),
    ("Wq", "Wv"),
    ("project_q", "project_v"),
    ("qkv_proj",),
    ("query_key_value",),
    ("Wqkv",),
    ("c_attn",),
    ("qkv",),
    ("q_b_proj", "kv_b_proj"),  # latent attention
    ("in_proj",),  # state-space mixers
)
"""Names of the layers that compute queries and values. If peft has no default for a ``model_type``,
the first entry that occurs in the model is the default."""


@METHODS.register("lora")
class Lora(PeftMethod):
    """Training of low-rank updates of target layers (147,456 parameters for GPT-2 at rank 4)."""

    rank: AtLeastOne = 4
    """Rank of each change."""
    alpha: Positive | None = None
    """Scale of the change, which is divided by rank; null takes 8 times rank (Hu et al.'s value for
    GPT-2 on E2E), or 16 with use_rslora."""
    use_rslora: bool = False
    """Divide alpha by the square root of rank instead (Kalajdzievski 2023)."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout on the input of the change, in [0, 1)."""
    targets: tuple[str, ...] | Literal["all-linear"] | None = None
    """Names of the layers to change, or last parts of names. all-linear takes all linear layers
    except the head; null takes queries and values."""

    own_parts: ClassVar[str] = "lora_"
    remedy: ClassVar[str] = "Choose other layers with method.targets"

    def _check_fields(self) -> None:
        if self.targets is not None and not self.targets:
            raise InputError(
                "method.targets must name at least one layer, got none.",
                key="method.targets",
                value=self.targets,
                hint="method.targets=null",
            )

    def configure(
        self, model: "PreTrainedModel", task: "TaskType | None", new_modules: list[str]
    ) -> "PeftConfig":
        """Return the peft configuration for this model.

        Raises:
            InputError: LoRA cannot change a target, or the rank is too large for a layer.
        """
        from peft import LoraConfig, TaskType
        from transformers.pytorch_utils import Conv1D

        saved_whole = [*new_modules, *(HEADS if task == TaskType.SEQ_CLS else ())]
        targets, layers = self._targeted(model, saved_whole)
        return LoraConfig(
            task_type=task,
            r=self.rank,
            lora_alpha=cast(int, self._alpha),
            lora_dropout=self.dropout,
            use_rslora=self.use_rslora,
            target_modules=targets,
            # Conv1D stores its weight as (in, out).
            fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in layers.values()),
            modules_to_save=new_modules or None,
        )

    def merge(self, model: "PreTrainedModel") -> "PreTrainedModel":
        """Return the base model with the change added to its weights, without peft.

        Raises:
            InputError: A changed weight is also the weight of another layer, which the sum would
                change.
        """
        owned = [
            parameter
            for module in model.modules()
            for _, parameter in module.named_parameters(recurse=False)
        ]
        shared = {parameter for parameter, uses in Counter(owned).items() if uses > 1}
        for name, layer in changed_layers(model).items():
            if layer.get_base_layer().weight in shared:
                raise InputError(
                    "merge=true needs LoRA on weights that no other layer shares, but"
                    f" {name} shares its weight.",
                    key="merge",
                    value=True,
                    hint="merge=false",
                )
        adapted: Any = model
        return cast("PreTrainedModel", adapted.merge_and_unload())

    @property
    def _alpha(self) -> float:
        if self.alpha is not None:
            return self.alpha
        return STABILIZED_ALPHA if self.use_rslora else PUBLISHED_SCALING * self.rank

    def _targeted(
        self, model: "PreTrainedModel", saved_whole: list[str]
    ) -> "tuple[list[str], dict[str, nn.Module]]":
        """Return the names by which peft finds the target layers, and these layers by name.

        Raises:
            InputError: LoRA cannot change a target, or the rank is too large for a layer.
        """
        unchanged = [*saved_whole, *idle_modules(model)]
        modules = {
            name: module
            for name, module in model.named_modules()
            # peft matches the heads that it keeps by name endings, so pre_classifier is also a
            # head.
            if not _is_inside(name, unchanged) and not name.endswith(tuple(saved_whole))
        }
        if self.targets == ALL_LINEAR:
            layers = _all_linear(model, modules)
            if not layers:
                raise InputError(
                    f"method.targets={ALL_LINEAR} needs a model with linear layers, but"
                    f" {type(model).__name__} has none.",
                    key="method.targets",
                    value=ALL_LINEAR,
                    hint="method=full",
                )
            targets = {name.rpartition(".")[2] for name in layers}
        else:
            targets = set(self.targets or _default_targets(model, modules))
            layers = _ending_in(targets, modules)
            for target in sorted(targets):
                matches = _ending_in([target], layers)
                if not matches or not all(map(_can_change, matches.values())):
                    raise InputError(
                        f"method.targets must name layers that LoRA can change, got {target!r}. In"
                        f" {type(model).__name__} they are {_last_parts(modules)}.",
                        key="method.targets",
                        value=target,
                    )
        for name, layer in layers.items():
            largest = min(_sides(layer))
            if self.rank > largest:
                raise InputError(
                    f"method.rank must be at most {largest}, the smaller side of {name}, got"
                    f" {self.rank}. Alternatively, remove that layer from method.targets.",
                    key="method.rank",
                    value=self.rank,
                    hint=f"method.rank={largest}",
                )
        matches = _ending_in(targets, dict(model.named_modules()))
        is_exact = layers.keys() == {name for name in matches if not _is_inside(name, saved_whole)}
        # peft searches for the names in the whole model, including its vision tower.
        return sorted(targets if is_exact else layers), layers


def changed_layers(model: "nn.Module") -> "dict[str, LoraLayer]":
    """Return the layers that LoRA changes, by their names in the model before peft wrapped it."""
    from peft.tuners.lora import LoraLayer

    return {
        original_name(name): module
        for name, module in model.named_modules()
        if isinstance(module, LoraLayer)
    }


def _default_targets(
    model: "PreTrainedModel", modules: "Mapping[str, nn.Module]"
) -> tuple[str, ...]:
    """Return the names of the layers that LoRA changes by default.

    Raises:
        InputError: No layer has a known name.
    """
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    names = {name.rpartition(".")[2] for name, module in modules.items() if _is_linear(module)}
    kind = model.config.model_type
    # For a few multimodal models, peft has a regular expression instead of a list.
    published = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.get(kind)
    candidates = [tuple(published)] if isinstance(published, list) else []
    for targets in [*candidates, *DEFAULT_TARGETS]:
        if names.issuperset(targets):
            return targets
    raise InputError(
        f"method.targets has no default for a {kind} model. Name some of"
        f" {_last_parts(modules)}, or take all linear layers.",
        key="method.targets",
        hint=f"method.targets={ALL_LINEAR}",
    )


def _all_linear(
    model: "PreTrainedModel", modules: "Mapping[str, nn.Module]"
) -> "dict[str, nn.Module]":
    """Return the linear layers except the output head.

    In a state-space mixer, only the first linear layer counts. Fused kernels read the weights of
    the other layers without calling them, so a change next to those weights would have no effect.
    """
    head = model.get_output_embeddings()
    mixers = [
        name
        for name, module in modules.items()
        if {"A_log", "D"} <= {inner for inner, _ in module.named_parameters(recurse=False)}
    ]
    return {
        name: module
        for name, module in modules.items()
        if _is_linear(module)
        and module is not head
        and (name.endswith(".in_proj") or not _is_inside(name, mixers))
    }


def _ending_in(
    targets: Iterable[str], modules: "Mapping[str, nn.Module]"
) -> "dict[str, nn.Module]":
    """Return the modules whose names end in a target, as peft matches them."""
    endings = tuple(f".{target}" for target in targets)
    return {name: module for name, module in modules.items() if f".{name}".endswith(endings)}


def _is_inside(name: str, modules: Iterable[str]) -> bool:
    return any(f".{module}." in f".{name}." for module in modules)


def _is_linear(layer: "nn.Module") -> bool:
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    return isinstance(layer, nn.Linear | Conv1D)


def _can_change(layer: "nn.Module") -> bool:
    from torch import nn

    return isinstance(layer, nn.Embedding) or _is_linear(layer)


def _sides(layer: "nn.Module") -> "Sequence[int]":
    """Return the shape of the matrix that a layer represents, in any storage format."""
    from torch import nn

    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features
    shape: Sequence[int] = cast(Any, layer).weight.shape
    return shape


def _last_parts(modules: "Mapping[str, nn.Module]") -> str:
    """Return the last parts of the names of the layers that LoRA can change."""
    names = (name for name, module in modules.items() if _can_change(module))
    return ", ".join(sorted({name.rpartition(".")[2] for name in names}))
