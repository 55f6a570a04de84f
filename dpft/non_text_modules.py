"""The modules of a multimodal model that process images or sound, which are not trained.

These modules encode images and sound and project them to the width of the text model. They remain
unchanged, because the gradient of a text record with respect to them is zero. A private step would
only add noise.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

TEXT_CONFIGS = frozenset(
    ("text_config", "encoder", "decoder", "attn_config", "ffn_config")
    + ("patcher_config", "encoder_config", "decoder_config", "global_config")
)
"""Names of sub-configurations that describe text models, or layers of text models (MPT,
DBRX, BLT)."""


def is_multimodal(config: "PretrainedConfig") -> bool:
    """Return whether a configuration has, at any depth, a part that is not a text model."""
    names = set(config.sub_configs)
    inner = (getattr(config, name, None) for name in names & TEXT_CONFIGS)
    return not names <= TEXT_CONFIGS or any(is_multimodal(part) for part in inner if part)


def idle_modules(model: "PreTrainedModel") -> tuple[str, ...]:
    """Return the names of the outermost modules and parameters that process no text."""
    config: Any = model.config
    if config.is_encoder_decoder or config.get_text_config() is config:
        return ()
    body: Any = model.base_model
    text = set(body.get_decoder().parameters())
    for table in (body.get_input_embeddings(), model.get_output_embeddings()):
        text |= set() if table is None else set(table.parameters())
    prefix = "" if body is model else f"{model.base_model_prefix}."
    modules = [name for name, m in body.named_children() if text.isdisjoint(m.parameters())]
    parameters = [name for name, p in body.named_parameters(recurse=False) if p not in text]
    return tuple(f"{prefix}{name}" for name in (*modules, *parameters))


def is_inside(name: str, modules: Iterable[str]) -> bool:
    """Return whether a name is one of the modules, or is inside one of them."""
    return any(f"{name}.".startswith(f"{module}.") for module in modules)
