"""Prefix tuning: trained keys and values in each layer (Li & Liang 2021, arXiv 2101.00190).

The trained keys and values (the prefix) precede those of the text. They are the output of a small
network on a trained embedding (the reparametrization). The saved adapter contains the resulting
keys and values, not this network. In an encoder-decoder, peft gives the prefix to the decoder.
There, layers i and i + layers / 2 use the same part of the prefix, and the rest of the prefix is
unused.
"""

import inspect
from typing import TYPE_CHECKING, Any, ClassVar

from dpft.errors import InputError
from dpft.methods.base import METHODS
from dpft.methods.peft_method import PeftMethod, check_attends_alone, refuse
from dpft.strict_model import AtLeastOne

if TYPE_CHECKING:
    from peft import PeftConfig, TaskType
    from transformers import PreTrainedModel


@METHODS.register("prefix")
class Prefix(PeftMethod):
    """Training of a prefix with reparametrization (9,857,024 parameters for GPT-2 by default)."""

    length: AtLeastOne = 10
    """Number of prefix positions (Li & Liang's value for E2E), which come before the model's own
    positions."""
    hidden: AtLeastOne = 512
    """Width of the reparametrization's hidden layer (Li & Liang's value for E2E)."""

    own_parts: ClassVar[str] = "prompt_encoder."

    @property
    def extra_positions(self) -> int:
        """Number of positions of the prefix."""
        return self.length

    def configure(
        self, model: "PreTrainedModel", task: "TaskType | None", new_modules: list[str]
    ) -> "PeftConfig":
        """Return the peft configuration for this model.

        Raises:
            InputError: The model's layers take no external keys and values, or are recomputed.
        """
        from peft import PrefixTuningConfig

        self._check(model, task)
        return PrefixTuningConfig(
            task_type=task,
            num_virtual_tokens=self.length,
            prefix_projection=True,
            encoder_hidden_size=self.hidden,
            modules_to_save=new_modules or None,
            **_sizes(self.name, model),
        )

    def _check(self, model: "PreTrainedModel", task: "TaskType | None") -> None:
        from peft import TaskType

        config: Any = model.config
        check_attends_alone(self.name, model)
        backbone = inspect.signature(model.base_model.forward).parameters
        classifies_encoder_decoder = task == TaskType.SEQ_CLS and config.is_encoder_decoder
        if task is None or classifies_encoder_decoder or "past_key_values" not in backbone:
            raise refuse(
                self.name, model, "a language model or a classifier that takes past_key_values"
            )
        # peft has the same condition: a recomputed layer would append to the same cache again.
        if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
            raise InputError(
                f"method={self.name} needs model.gradient_checkpointing=false, got true. Recomputed"
                " layers cannot use its prefix, which is a key-value cache.",
                key="model.gradient_checkpointing",
                value=True,
                hint="model.gradient_checkpointing=false",
            )


def _sizes(name: str, model: "PreTrainedModel") -> dict[str, Any]:
    """Return the sizes of keys and values that peft would otherwise read wrongly from the config.

    Raises:
        InputError: Keys and values have different widths, as with latent attention (MLA).
    """
    config: Any = model.config
    # peft counts T5's encoder layers and assumes that heads fill d_model. But the prefix belongs to
    # the decoder, and T5's heads may be wider or narrower (Flan-T5 small: 6 heads of 64, d_model
    # 512).
    if "num_decoder_layers" in config.to_dict():
        return {
            "num_layers": config.num_decoder_layers,
            "num_attention_heads": config.num_heads,
            "token_dim": config.num_heads * config.d_kv,
        }
    shapes = _cached_shapes(model)
    if len(shapes) != 1:  # peft takes the widest of several and skips the other layers (Gemma 4)
        return {}
    (heads, key_width, value_width) = shapes.pop()
    if key_width != value_width:
        raise refuse(name, model, "a model with keys and values of the same width")
    return {"num_attention_heads": heads, "token_dim": heads * key_width}


def _cached_shapes(model: "PreTrainedModel") -> set[tuple[int, int, int]]:
    """Return heads, width of keys and width of values in the layers' caches, from shapes only.

    The set is empty for a model with an encoder, and for a model that cannot run without values.
    """
    import torch
    from torch.func import functional_call

    if model.config.is_encoder_decoder:
        return set()
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    shapes = {name: torch.empty_like(value, device="meta") for name, value in tensors.items()}
    inputs = {"input_ids": torch.zeros(1, 1, dtype=torch.long, device="meta"), "use_cache": True}
    try:
        with torch.no_grad():
            outputs = functional_call(model, shapes, kwargs=inputs)
    except (RuntimeError, NotImplementedError):  # an operation that needs values
        return set()
    cache = outputs.get("past_key_values")  # an encoder fills no cache
    layers = [] if cache is None else [layer for layer in cache.layers if layer.keys is not None]
    return {(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]) for layer in layers}
