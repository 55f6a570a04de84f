"""Parts of a Hugging Face model: its norms, its blocks and its head.

Methods that train a part of the model share these answers. ``PreTrainedModel`` names its body
(``base_model``) and its embeddings; for the rest the order and the names of modules have to do.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from dpft.errors import InputError

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

FINAL_NORMS = frozenset(
    {"ln_f", "norm", "norm_f", "final_layer_norm", "final_layernorm", "layer_norm", "layernorm"}
)
"""What models call the norm after their last block. A norm of the embeddings is called otherwise:
``LayerNorm`` in BERT, ``layernorm_embedding`` in BART, ``word_embeddings_layernorm`` in BLOOM."""


def train_only(
    model: "PreTrainedModel", wanted: "Callable[[str, nn.Parameter], bool]"
) -> "PreTrainedModel":
    """Returns the model with ``requires_grad`` set where ``wanted(name, parameter)`` alone."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(wanted(name, parameter))
    return model


def norm_parameters(model: "nn.Module") -> "set[nn.Parameter]":
    """Returns weights and biases of the normalization layers.

    Hugging Face's own ones (``LlamaRMSNorm``, ``T5LayerNorm``) share no base class with torch's,
    so the class name decides: all of them, torch's included, end in ``Norm``.
    """
    return {p for module in model.modules() if is_norm(module) for p in module.parameters(False)}


def is_norm(module: "nn.Module") -> bool:
    """Returns whether a module is a normalization layer."""
    return type(module).__name__.endswith("Norm")


def output_embeddings(model: "PreTrainedModel") -> "nn.Module | None":
    """Returns a language model's head, None for other models."""
    head: nn.Module | None = model.get_output_embeddings()
    return head


def is_tied(model: "PreTrainedModel") -> bool:
    """Returns whether the model has a language-model head whose weight is the embeddings'."""
    head = output_embeddings(model)
    if head is None:
        return False
    inputs = set(model.get_input_embeddings().parameters())
    return any(parameter in inputs for parameter in head.parameters())


def untie_head(model: "PreTrainedModel") -> None:
    """Gives a causal language model a head of its own, a copy of its embeddings.

    The model computes what it did; it is saved with one table more, and loads with both.

    Raises:
        InputError: The model is no causal one: T5 scales what a tied head reads, and BERT's head
            has a bias that is tied too.
    """
    from torch import nn

    config, head = model.config, cast(Any, output_embeddings(model))
    alone = list(head.parameters()) == [head.weight]
    if config.is_encoder_decoder or not model.can_generate() or not alone:
        raise InputError(
            f"method.untie=true needs a causal language model, got {type(model).__name__}; choose"
            " method=top2 or method=bitfit."
        )
    head.weight = nn.Parameter(head.weight.detach().clone())
    for each in (config, config.get_text_config()):
        each.tie_word_embeddings = False
    model.all_tied_weights_keys = {}


def head_parameters(model: "PreTrainedModel") -> "set[nn.Parameter]":
    """Returns the parameters outside the model's body: its head, without what is tied to the body.

    T5 is its own body, head included; its output embeddings are the head all the same.
    """
    head = output_embeddings(model)
    own = set() if head is None else set(head.parameters())
    body = set(model.base_model.parameters())
    if model.base_model is model:
        return own - set(model.get_input_embeddings().parameters())
    return (set(model.parameters()) | own) - body


def block_list(model: "PreTrainedModel") -> "nn.ModuleList":
    """Returns the transformer blocks, first to last: a seq2seq model's are those of its decoder.

    They are the outermost list of modules of one class that holds the most parameters.

    Raises:
        InputError: The model has no such list.
    """
    from dpft.parallel.blocks import block_lists, size_of

    outermost = block_lists(_body(model))
    if not outermost:
        raise InputError(
            f"method=top2 needs a model with a list of transformer blocks, got none in"
            f" {type(model).__name__}; choose method=bitfit or method=full."
        )
    return max(outermost, key=lambda blocks: size_of(blocks.parameters()))


def final_norm_parameters(model: "PreTrainedModel") -> "set[nn.Parameter]":
    """Returns the parameters of the norm after the last block; BERT has none."""
    body = _body(model)
    inside = set(block_list(model).modules())
    return {
        parameter
        for name, module in body.named_modules()
        if is_norm(module) and module not in inside and name.rpartition(".")[2] in FINAL_NORMS
        for parameter in module.parameters()
    }


def _body(model: "PreTrainedModel") -> "nn.Module":
    if not model.config.is_encoder_decoder:
        return model.base_model
    decoder: nn.Module = model.get_decoder()
    return decoder
