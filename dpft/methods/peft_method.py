"""Base class of methods that use peft: one adapter on a frozen base, saved without the base."""

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dpft.errors import InputError
from dpft.methods.base import Method

if TYPE_CHECKING:
    from peft import PeftConfig, TaskType
    from torch import nn
    from transformers import PreTrainedModel


class PeftMethod(Method):
    """Base class of the methods that peft implements; ``save`` writes a folder of peft."""

    saves_whole_model: ClassVar[bool] = False
    trains_beside: ClassVar[bool] = True
    own_parts: ClassVar[str]
    """Part of the names of the parameters that the method itself adds."""
    remedy: ClassVar[str] = "Choose another method"
    """Advice if peft does not support the model with these settings."""

    @abstractmethod
    def configure(
        self, model: "PreTrainedModel", task: "TaskType | None", new_modules: list[str]
    ) -> "PeftConfig":
        """Return a peft configuration for this model.

        Raises:
            InputError: The settings do not fit the model.
        """

    def adapt(self, model: "PreTrainedModel", new: frozenset[str]) -> "PreTrainedModel":
        """Return the model wrapped by peft; only the method's own parameters are trainable.

        Raises:
            InputError: The settings do not fit the model.
        """
        from dpft.methods.adapter_files import wrap

        config = self.configure(model, task_type(model), new_modules(model, new))
        try:
            prepared = wrap(model, config)
        except ValueError as error:
            raise InputError(
                f"method={self.name} does not fit {type(model).__name__}, because peft reports"
                f" {str(error).splitlines()[0].rstrip('.')!r}. {self.remedy}.",
                key="method",
                value=self.name,
            ) from error
        for name, parameter in prepared.named_parameters():
            parameter.requires_grad_(self.own_parts in name)
        return prepared

    def save(self, model: "PreTrainedModel", folder: Path) -> None:
        """Write the adapter and all other trained weights for ``PeftModel.from_pretrained``."""
        from dpft.methods.adapter_files import save_adapter

        save_adapter(model, folder)

    def restore(self, model: "PreTrainedModel", folder: Path) -> "PreTrainedModel":
        """Return the base with the saved adapter, in eval mode and without trainable parameters.

        Args:
            model: Base that the run began with. If ``base_folder(folder)`` is not None, the run
                began with random weights and the base must be loaded from that folder.
            folder: Folder that was passed to ``save``.
        """
        from dpft.methods.adapter_files import load_adapter

        return load_adapter(model, folder)


def task_type(model: "PreTrainedModel") -> "TaskType | None":
    """Return peft's name for the model's task; None if peft has none, as for masked LM."""
    from peft import TaskType
    from transformers.models.auto import modeling_auto

    classes_of_task: dict[TaskType, Mapping[str, Any]] = {
        TaskType.CAUSAL_LM: modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        TaskType.SEQ_2_SEQ_LM: modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        TaskType.SEQ_CLS: modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    }
    if not model.config.is_encoder_decoder:  # transformers lists Qwen2-Audio with these models
        del classes_of_task[TaskType.SEQ_2_SEQ_LM]
    for task, classes in classes_of_task.items():
        class_names = classes.get(model.config.model_type, ())
        if type(model).__name__ in (
            (class_names,) if isinstance(class_names, str) else class_names
        ):
            return task
    return None


def new_modules(model: "nn.Module", new: frozenset[str]) -> list[str]:
    """Return the names of the outermost modules that contain only new parameters.

    A list of modules is excluded, because it is never called and peft cannot replace it.
    """
    from torch import nn

    whole = {
        name
        for name, module in model.named_modules()
        if not isinstance(module, nn.ModuleList | nn.ModuleDict)
        and (parameter_names := [f"{name}.{inner}" for inner, _ in module.named_parameters()])
        and new.issuperset(parameter_names)
    }
    return sorted(name for name in whole if name.rpartition(".")[0] not in whole)


def check_attends_alone(name: str, model: "PreTrainedModel") -> None:
    """Check that a model reads earlier tokens only through attention.

    A layer with a convolution or a recurrent state takes no prefix. Such a layer also reads the
    padding between a prompt and a text, so a text would depend on the longest text of its batch.

    Raises:
        InputError: A layer keeps a state other than the keys and values of attention.
    """
    from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, LinearAttentionCacheLayerMixin

    layers: Any = DYNAMIC_LAYER_TYPE_MAPPING
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    keeps_state = any(
        issubclass(layers.get(kind, object), LinearAttentionCacheLayerMixin) for kind in kinds
    )
    if keeps_state or model._is_stateful:
        raise refuse(
            name, model, "a model that caches only keys and values, without a recurrent state"
        )


def refuse(name: str, model: "PreTrainedModel", expected: str) -> InputError:
    """Return the error for a method that does not fit a model."""
    return InputError(
        f"method={name} needs {expected}, got {type(model).__name__}.",
        key="method",
        value=name,
        hint="method=lora",
    )
