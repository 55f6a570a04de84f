"""Base class of fine-tuning methods: prepare a model and choose its trainable parameters.

Adding a method is a module here whose class registers itself in ``METHODS``, a YAML in conf/method
and a test. A run asks a method, in this order: ``prepare`` once; ``phases`` for its plan; then in
every step ``begin_step``, the private gradient of what requires grad, ``finish_gradient``,
``begin_update``, and the optimizer over ``moved_parameters``; ``save`` at the end. Most methods say
only what trains, in ``adapt``.

The parts of a model that methods train, its norms, blocks and head, are answered here, too:
``PreTrainedModel`` names its body
(``base_model``) and its embeddings; for the rest the order and the names of modules have to do.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from dpft.config.section import Section
from dpft.errors import InputError
from dpft.non_text_modules import idle_modules, is_inside
from dpft.registry import Registry
from dpft.strict_model import Count, StrictModel

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from transformers import PreTrainedModel


LARGEST_FILE = "5GB"
"""Of a saved model's weights; who saves a model from shards holds as much in memory."""
WRAPPINGS = ("base_model.model.", "base_model.", ".modules_to_save.default", ".base_layer")
"""peft's prefix of the names of a wrapped model's parameters."""


class ParameterCounts(StrictModel):
    """Numbers in the parameters of a prepared model; a tied parameter counts once."""

    trainable: Count
    """Numbers that train."""
    new: Count
    """Of the trainable: task heads that the base checkpoint's architecture lacks."""
    total: Count
    """Numbers of the model."""


@dataclass(frozen=True, kw_only=True)
class MethodPhase:
    """A stretch of steps in which the same parameters train."""

    method: str
    steps: int
    max_grad_norm: float | None = None
    """None takes privacy.max_grad_norm."""
    learning_rate: float | None = None
    """None takes train.learning_rate; the schedule's factor applies to it as well."""


class Method(Section, ABC):
    """Base of every method; its fields are its configuration, ``conf/method/<name>.yaml``."""

    name: str
    """Which method; chosen by method=NAME."""
    train_new_modules: bool = True
    """Train what the base checkpoint's architecture lacks, such as a classification head."""
    train_biases: bool = False
    """Train every bias as well (BiTFiT, Bu et al. 2022)."""
    train_embeddings: bool = False
    """Train the input embeddings as well; dialogue needs it (Li et al. 2022, Appendix V)."""

    saves_whole_model: ClassVar[bool] = True
    """Whether ``save`` leaves a model that ``from_pretrained`` loads; else it needs the base."""
    trains_beside: ClassVar[bool] = False
    """Whether it leaves the base's own weights as they are, which may then be quantized."""
    required_init: ClassVar[str | None] = None
    """The only ``model.init`` it works with; None: any."""

    def prepare(
        self, model: "PreTrainedModel", new: frozenset[str] = frozenset()
    ) -> "PreTrainedModel":
        """Return the model to train, with ``requires_grad`` set on exactly what trains first.

        Args:
            model: A fresh model; it may be on the meta device. It may be changed in place.
            new: Names of its parameters that the base checkpoint's architecture lacks.

        Raises:
            InputError: The settings do not fit the model, or nothing is left to train.
        """
        idle = idle_modules(model)
        prepared = self.adapt(model, new)
        for parameter in self._also_trained(prepared, new):
            parameter.requires_grad_(True)
        for name, parameter in prepared.named_parameters():
            if is_inside(original_name(name), idle):
                parameter.requires_grad_(False)
        if not any(parameter.requires_grad for parameter in prepared.parameters()):
            raise InputError(
                f"method={self.name} leaves no parameter of {type(model).__name__} to train.",
                key="method",
                value=self.name,
                hint="method=full",
            )
        return prepared

    @abstractmethod
    def adapt(self, model: "PreTrainedModel", new: frozenset[str]) -> "PreTrainedModel":
        """Return the model with ``requires_grad`` set on what the method itself trains."""

    def phases(
        self, steps: int, steps_of_epochs: Callable[[float], int]
    ) -> tuple[MethodPhase, ...]:
        """Return the stretches of a run of ``steps`` steps; their steps add up to it.

        Args:
            steps: Steps planned.
            steps_of_epochs: Epochs to the number of steps they take, at least 1.
        """
        return (MethodPhase(method=self.name, steps=steps),)

    def begin_step(self, model: "nn.Module", step: int) -> None:
        """Make the model ready for step ``step`` (counted from 0), before its batch is drawn.

        The one place where what trains may change, and only where a phase begins. Whatever it
        reads of the model is the output of earlier noisy steps. It follows from those weights and
        ``step`` alone: it may be asked again, and for another step than the one that comes next.
        """
        return

    def finish_gradient(self, model: "nn.Module") -> None:
        """Turn the private gradient into that of ``moved_parameters``: post-processing."""
        return

    def begin_update(self, optimizer: "Optimizer", step: int) -> None:
        """Make the optimizer ready for step ``step`` (counted from 0), just before it moves.

        What is done follows from ``step`` alone, so that a run that is resumed there does it too.
        """
        return

    def moved_parameters(self, model: "nn.Module") -> "list[nn.Parameter]":
        """Return the parameters that the optimizer moves, asked after ``begin_step(model, 0)``."""
        return [parameter for parameter in model.parameters() if parameter.requires_grad]

    @property
    def extra_positions(self) -> int:
        """Positions of the model that stand before a text's own: those of a prompt or a prefix."""
        return 0

    def save(self, model: "PreTrainedModel", folder: Path) -> None:
        """Write the trained model, whole where ``saves_whole_model``."""
        model.save_pretrained(folder, safe_serialization=True, max_shard_size=LARGEST_FILE)

    def restore(self, model: "PreTrainedModel", folder: Path) -> "PreTrainedModel":
        """Return a fresh base model with what ``save`` wrote put onto it.

        Asked only of methods that do not save the whole model.
        """
        raise NotImplementedError(f"method={self.name} saves the whole model.")

    def merge(self, model: "PreTrainedModel") -> "PreTrainedModel":
        """Return the trained model as one that needs no base; LoRA adds its change to the weights.

        Raises:
            InputError: What the method trains cannot be put into the base's own weights.
        """
        if self.saves_whole_model:
            return model
        raise InputError(
            "merge=true needs a method that can be merged into the base weights, such as lora, got"
            f" method={self.name}.",
            key="merge",
            value=True,
            hint="merge=false",
        )

    def _also_trained(self, model: "nn.Module", new: frozenset[str]) -> "Iterator[nn.Parameter]":
        """Yield the parameters that ``train_new_modules`` and its like add to the method's own."""
        inputs = input_embeddings(model) if self.train_embeddings else set()
        for name, parameter in model.named_parameters():
            fresh = is_new(name, new)
            if (
                (self.train_new_modules and fresh)
                or (self.train_biases and not fresh and is_bias(name))
                or parameter in inputs
            ):
                yield parameter


def is_bias(name: str) -> bool:
    """Return whether a parameter's name is that of a bias of the model itself."""
    # peft keeps the module it replaced as original_module, and never runs it
    replaced = "original_module" in name or "lora_" in name
    return original_name(name).rpartition(".")[2] == "bias" and not replaced


def is_new(name: str, new: frozenset[str]) -> bool:
    """Return whether a parameter of a prepared model is one of the ``new`` of the fresh model."""
    return original_name(name) in new and "original_module" not in name


def original_name(name: str) -> str:
    """Return a parameter's name in the model before peft wrapped it.

    >>> original_name("base_model.model.classifier.modules_to_save.default.weight")
    'classifier.weight'
    """
    for wrapping in WRAPPINGS:
        name = name.replace(wrapping, "")
    return name


def input_embeddings(model: "nn.Module") -> "set[nn.Parameter]":
    """Return the parameters of the token embedding, a tied head's weight among them."""
    base: Any = model
    if hasattr(model, "peft_config"):
        base = base.get_base_model()
    try:
        table = base.get_input_embeddings()
    except NotImplementedError:  # what sees images by convolutions has none
        table = None
    return set() if table is None else set(table.parameters())


def quantized_layers(model: "nn.Module") -> "list[nn.Linear]":
    """Return the layers whose frozen weights are held in fewer bits (``models.quantization``)."""
    from torch import nn

    linear_layers = (module for module in model.modules() if isinstance(module, nn.Linear))
    return [layer for layer in linear_layers if not layer.weight.is_floating_point()]


def layer_numbers(layer: "nn.Linear") -> int:
    """Return how many numbers a layer's weight stands for, however it is held."""
    return layer.in_features * layer.out_features


def count_parameters(model: "nn.Module", new: frozenset[str] = frozenset()) -> ParameterCounts:
    """Return how many numbers of a prepared model train, how many of them are new, and all.

    Args:
        model: After ``Method.prepare``.
        new: Names, in the fresh model, of what the base checkpoint's architecture lacks.

    Raises:
        InputError: Nothing is trainable.
    """
    trainable = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise InputError(
            "method must leave a parameter to train, got none. Choose another method.", key="method"
        )
    return ParameterCounts(
        trainable=sum(trainable.values()),
        new=sum(size for name, size in trainable.items() if is_new(name, new)),
        total=sum(p.numel() for p in model.parameters())
        + sum(layer_numbers(m) - m.weight.numel() for m in quantized_layers(model)),
    )


METHODS: Registry[type[Method]] = Registry("dpft.methods", key="method.name")
"""Every method by name; a module of this package registers its class."""


FINAL_NORMS = frozenset(
    {"ln_f", "norm", "norm_f", "final_layer_norm", "final_layernorm", "layer_norm", "layernorm"}
)
"""What models call the norm after their last block. A norm of the embeddings is called otherwise:
``LayerNorm`` in BERT, ``layernorm_embedding`` in BART, ``word_embeddings_layernorm`` in BLOOM."""


def train_only(
    model: "PreTrainedModel", wanted: "Callable[[str, nn.Parameter], bool]"
) -> "PreTrainedModel":
    """Return the model with ``requires_grad`` set where ``wanted(name, parameter)`` alone."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(wanted(name, parameter))
    return model


def norm_parameters(model: "nn.Module") -> "set[nn.Parameter]":
    """Return weights and biases of the normalization layers.

    Hugging Face's own ones (``LlamaRMSNorm``, ``T5LayerNorm``) share no base class with torch's,
    so the class name decides: all of them, torch's included, end in ``Norm``.
    """
    return {p for module in model.modules() if is_norm(module) for p in module.parameters(False)}


def is_norm(module: "nn.Module") -> bool:
    """Return whether a module is a normalization layer."""
    return type(module).__name__.endswith("Norm")


def output_embeddings(model: "PreTrainedModel") -> "nn.Module | None":
    """Return a language model's head, None for other models."""
    head: nn.Module | None = model.get_output_embeddings()
    return head


def is_tied(model: "PreTrainedModel") -> bool:
    """Return whether the model has a language-model head whose weight is the embeddings'."""
    head = output_embeddings(model)
    if head is None:
        return False
    inputs = set(model.get_input_embeddings().parameters())
    return any(parameter in inputs for parameter in head.parameters())


def untie_head(model: "PreTrainedModel") -> None:
    """Give a causal language model a head of its own, a copy of its embeddings.

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
            f"method.untie=true needs a causal language model, got {type(model).__name__}. Choose"
            " another method, such as method=bitfit.",
            key="method.untie",
            value=True,
            hint="method=top2",
        )
    head.weight = nn.Parameter(head.weight.detach().clone())
    for part in (config, config.get_text_config()):
        part.tie_word_embeddings = False
    model.all_tied_weights_keys = {}


def head_parameters(model: "PreTrainedModel") -> "set[nn.Parameter]":
    """Return the parameters outside the model's body: its head, without what is tied to the body.

    T5 is its own body, head included; its output embeddings are the head all the same.
    """
    head = output_embeddings(model)
    head_weights = set() if head is None else set(head.parameters())
    body = set(model.base_model.parameters())
    if model.base_model is model:
        return head_weights - set(model.get_input_embeddings().parameters())
    return (set(model.parameters()) | head_weights) - body


def block_list(model: "PreTrainedModel") -> "nn.ModuleList":
    """Return the transformer blocks, first to last: a seq2seq model's are those of its decoder.

    They are the outermost list of modules of one class that holds the most parameters.

    Raises:
        InputError: The model has no such list.
    """
    from dpft.parallel.sharding import block_lists, size_of

    outermost = block_lists(_body(model))
    if not outermost:
        raise InputError(
            f"method=top2 needs a model with a list of transformer blocks, but"
            f" {type(model).__name__} has none. Choose another method, such as method=full.",
            key="method",
            value="top2",
            hint="method=bitfit",
        )
    return max(outermost, key=lambda blocks: size_of(blocks.parameters()))


def final_norm_parameters(model: "PreTrainedModel") -> "set[nn.Parameter]":
    """Return the parameters of the norm after the last block; BERT has none."""
    body = _body(model)
    inside = set(block_list(model).modules())
    return {
        parameter
        for name, module in body.named_modules()
        if is_norm(module) and module not in inside and name.rpartition(".")[2] in FINAL_NORMS
        for parameter in module.parameters()
    }


def _body(model: "PreTrainedModel") -> "nn.Module":
    if not model.config.is_encoder_decoder and not idle_modules(model):
        return model.base_model
    decoder: nn.Module = model.get_decoder()
    return decoder
