"""Prompt tuning: trained embeddings before the input (Lester et al. 2021, arXiv 2104.08691).

peft also returns the logits of the prompt's own positions. It drops position ids, so a left-padded
text would get other positions than the same text without padding. This module fixes both in the
prepared model, whose inputs and outputs are then the same as without a prompt.

Shapes: b examples, n prompt positions, t tokens, d width, v vocabulary.
"""

from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, cast

from dpft.methods.base import METHODS
from dpft.methods.peft_method import PeftMethod, check_attends_alone, refuse, task_type
from dpft.strict_model import AtLeastOne

if TYPE_CHECKING:
    from peft import PeftConfig, TaskType
    from torch import Tensor, nn
    from transformers import PreTrainedModel


@METHODS.register("prompt")
class Prompt(PeftMethod):
    """Training of the embeddings of a prompt, drawn at random from the global generator."""

    num_virtual_tokens: AtLeastOne = 20
    """Number of prompt positions; Lester et al. gain little beyond 20. The prompt uses positions of
    the model."""

    own_parts: ClassVar[str] = "prompt_encoder."

    @property
    def extra_positions(self) -> int:
        """Number of positions of the prompt."""
        return self.num_virtual_tokens

    def configure(
        self, model: "PreTrainedModel", task: "TaskType | None", new_modules: list[str]
    ) -> "PeftConfig":
        """Return the peft configuration for this model.

        Raises:
            InputError: The model cannot take a prompt, or would read its result from the padding.
        """
        from peft import PromptTuningConfig, TaskType

        check_attends_alone(self.name, model)
        text: Any = model.config.get_text_config()
        if task is None or (task == TaskType.SEQ_CLS and not _is_encoder(model)):
            raise refuse(self.name, model, "a language model or a classifier on an encoder")
        return PromptTuningConfig(
            task_type=task,
            num_virtual_tokens=self.num_virtual_tokens,
            token_dim=cast(Any, model.get_input_embeddings()).embedding_dim,
            # With 2, peft would double the prompt of an encoder-decoder and use half of it.
            num_transformer_submodules=1,
            num_layers=text.num_hidden_layers,
            num_attention_heads=text.num_attention_heads,
            modules_to_save=new_modules or None,
        )

    def adapt(self, model: "PreTrainedModel", new: frozenset[str]) -> "PreTrainedModel":
        """Return the model with a prompt before its input; only the prompt is trainable."""
        return _mended(super().adapt(model, new))

    def restore(self, model: "PreTrainedModel", folder: Path) -> "PreTrainedModel":
        """Return the base with the saved prompt; inputs and outputs are as without a prompt."""
        return _mended(super().restore(model, folder))


def _is_encoder(model: "PreTrainedModel") -> bool:
    """Return whether the model is an encoder, on which a classifier reads the first position.

    A classifier on a decoder reads the last token, which it cannot find if the input is embeddings.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    config: Any = model.config
    encoders = MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return config.model_type in encoders and not config.is_encoder_decoder


def _mended(prepared: "PreTrainedModel") -> "PreTrainedModel":
    """Return the model, changed so that its inputs and outputs are the same as without a prompt."""
    from peft import TaskType

    adapted: Any = prepared
    base = adapted.get_base_model()
    # Methods are bound to the model instead of closures, so that a copy of the model gets its own.
    adapted.get_prompt = MethodType(_prompt, adapted)
    prepared.register_forward_pre_hook(_drop_positions, with_kwargs=True)
    if task_type(base) == TaskType.CAUSAL_LM:
        prepared.register_forward_pre_hook(_keep_own_logits, with_kwargs=True)
        base.register_forward_pre_hook(_derive_positions, with_kwargs=True)
        adapted.base_model_prepare_inputs_for_generation = MethodType(_step_inputs, base)
    return prepared


def _prompt(adapted: Any, batch_size: int, task_ids: None = None) -> "Tensor":
    """Return the prompt, looked up for each example, shape (b, n, d).

    peft looks up the prompt once and repeats it, so the embedding layer could not attribute its
    gradient to the examples. The clipper would use single-example execution for the whole model.
    """
    encoder = adapted.prompt_encoder[adapted.active_adapter]
    tokens = adapted.prompt_tokens[adapted.active_adapter].to(encoder.embedding.weight.device)
    prompt: Tensor = encoder(tokens.expand(batch_size, -1))
    return prompt


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def _drop_positions(model: "nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Drop position ids, which peft would drop with a warning."""
    return args, {name: value for name, value in kwargs.items() if name != "position_ids"}


def _keep_own_logits(
    model: "nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments:
    """Request the logits of the tokens only, shape (b, t, v); with labels, keep all n + t."""
    if "input_ids" in kwargs and kwargs.get("labels") is None:
        kwargs = {"logits_to_keep": kwargs["input_ids"].shape[1], **kwargs}
    return args, kwargs


def _derive_positions(
    model: "nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments:
    """Compute position ids by counting unmasked tokens, as ``generate`` does; mask (b, n + t)."""
    mask = kwargs.get("attention_mask")
    if mask is None or mask.dim() != 2 or kwargs.get("position_ids") is not None:
        return args, kwargs
    embedded = kwargs.get("inputs_embeds")
    steps = (kwargs["input_ids"] if embedded is None else embedded).shape[1]
    positions = (mask.long().cumsum(dim=1) - 1).clamp(min=0)[:, -steps:]
    return args, {**kwargs, "position_ids": positions}


def _step_inputs(base: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return the base's inputs for a step of generation, without position ids."""
    inputs = type(base).prepare_inputs_for_generation(base, *args, **kwargs)
    return {name: value for name, value in inputs.items() if name != "position_ids"}
