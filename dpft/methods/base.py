"""Base class of fine-tuning methods: prepare a model and choose its trainable parameters.

A new method needs a module here whose class registers itself in ``METHODS``, a YAML file in
conf/method, and a test. A run calls ``prepare`` once, and then ``phases`` for its plan. In every
step, it calls ``begin_step``, computes the private gradient of the parameters that require grad,
and calls ``finish_gradient`` and ``begin_update``. The optimizer then updates ``moved_parameters``.
At the end, the run calls ``save``. Most methods define only ``adapt``, which selects the trainable
parameters.

This module also finds the parts of a model that methods train: its norms, blocks and head.
``PreTrainedModel`` names its body (``base_model``) and its embeddings. The order and the names of
modules identify the rest.
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
"""Maximum size of a weight file of a saved model. Saving a sharded model takes this much memory."""
WRAPPINGS = ("base_model.model.", "base_model.", ".modules_to_save.default", ".base_layer")
"""Parts that peft adds to the names of a wrapped model's parameters."""


class ParameterCounts(StrictModel):
    """Numbers of parameters of a prepared model; a tied parameter counts once."""

    trainable: Count
    """Number of trainable parameters."""
    new: Count
    """Number of trainable parameters in task heads that the base checkpoint's architecture
    lacks."""
    total: Count
    """Number of all parameters of the model."""


@dataclass(frozen=True, kw_only=True)
class MethodPhase:
    """Consecutive steps in which the same parameters train."""

    method: str
    steps: int
    max_grad_norm: float | None = None
    """Clipping norm of the phase; None: privacy.max_grad_norm."""
    learning_rate: float | None = None
    """Learning rate of the phase; None: train.learning_rate. The factor of the schedule applies in
    both cases."""


class Method(Section, ABC):
    """Base class of methods; its fields are the configuration, ``conf/method/<name>.yaml``."""

    name: str
    """Name of the method; chosen by method=NAME."""
    train_new_modules: bool = True
    """Train the modules that the base checkpoint's architecture lacks, such as a classification
    head."""
    train_biases: bool = False
    """Also train every bias (BiTFiT, Bu et al. 2022)."""
    train_embeddings: bool = False
    """Also train the input embeddings, as dialogue tasks need (Li et al. 2022, Appendix V)."""

    saves_whole_model: ClassVar[bool] = True
    """Whether ``save`` writes a model that ``from_pretrained`` loads; otherwise the base is
    needed."""
    trains_beside: ClassVar[bool] = False
    """Whether the method leaves the base's own weights unchanged, so that they may be quantized."""
    required_init: ClassVar[str | None] = None
    """The only ``model.init`` that the method supports; None: any."""

    def prepare(
        self, model: "PreTrainedModel", new: frozenset[str] = frozenset()
    ) -> "PreTrainedModel":
        """Return the model with ``requires_grad`` set on the parameters of the first phase only.

        Args:
            model: A fresh model, which may be on the meta device and may be changed in place.
            new: Names of its parameters that the base checkpoint's architecture lacks.

        Raises:
            InputError: The settings do not fit the model, or no parameter is left to train.
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
        """Return the model with ``requires_grad`` set on the parameters of the method itself."""

    def phases(
        self, steps: int, steps_of_epochs: Callable[[float], int]
    ) -> tuple[MethodPhase, ...]:
        """Return the phases of a run of ``steps`` steps; their steps add up to ``steps``.

        Args:
            steps: Number of planned steps.
            steps_of_epochs: Function from epochs to the number of steps they take, at least 1.
        """
        return (MethodPhase(method=self.name, steps=steps),)

    def begin_step(self, model: "nn.Module", step: int) -> None:
        """Prepare the model for step ``step`` (counted from 0), before its batch is drawn.

        The trainable parameters may change only here, and only at the beginning of a phase. All
        values that a method reads from the model are outputs of earlier noisy steps. The result
        depends only on these weights and on ``step``. A run may call this method several times for
        one step, and for a step that does not follow the previous one.
        """
        return

    def finish_gradient(self, model: "nn.Module") -> None:
        """Compute the gradients of ``moved_parameters`` from the private gradient.

        This is post-processing. By default, nothing is changed.
        """
        return

    def begin_update(self, optimizer: "Optimizer", step: int) -> None:
        """Prepare the optimizer for step ``step`` (counted from 0), just before it updates.

        The effect depends only on ``step``, so a run that resumes at this step repeats it.
        """
        return

    def moved_parameters(self, model: "nn.Module") -> "list[nn.Parameter]":
        """Return the parameters that the optimizer updates; call ``begin_step(model, 0)`` first."""
        return [parameter for parameter in model.parameters() if parameter.requires_grad]

    @property
    def extra_positions(self) -> int:
        """Number of the model's positions that a prompt or prefix uses before the text."""
        return 0

    def save(self, model: "PreTrainedModel", folder: Path) -> None:
        """Write the trained model, as a whole if ``saves_whole_model``."""
        model.save_pretrained(folder, safe_serialization=True, max_shard_size=LARGEST_FILE)

    def restore(self, model: "PreTrainedModel", folder: Path) -> "PreTrainedModel":
        """Return a fresh base model with the parameters that ``save`` wrote.

        Only methods that do not save the whole model need this.
        """
        raise NotImplementedError(f"method={self.name} saves the whole model.")

    def merge(self, model: "PreTrainedModel") -> "PreTrainedModel":
        """Return the trained model as a model without a base; LoRA adds its change to the weights.

        Raises:
            InputError: The parameters that the method trains cannot be merged into the base's own
                weights.
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
        """Yield the parameters that ``train_new_modules`` and similar settings add."""
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
    """Return whether the parameter is a bias of the base model, by its name."""
    # peft keeps the module that it replaced as original_module, and never runs that module.
    replaced = "original_module" in name or "lora_" in name
    return original_name(name).rpartition(".")[2] == "bias" and not replaced


def is_new(name: str, new: frozenset[str]) -> bool:
    """Return whether a parameter of a prepared model has one of the names ``new``."""
    return original_name(name) in new and "original_module" not in name


def original_name(name: str) -> str:
    """Return the name of a parameter in the model before peft wrapped it.

    >>> original_name("base_model.model.classifier.modules_to_save.default.weight")
    'classifier.weight'
    """
    for wrapping in WRAPPINGS:
        name = name.replace(wrapping, "")
    return name


def input_embeddings(model: "nn.Module") -> "set[nn.Parameter]":
    """Return the parameters of the token embedding, including a tied head's weight."""
    base: Any = model
    if hasattr(model, "peft_config"):
        base = base.get_base_model()
    try:
        table = base.get_input_embeddings()
    except NotImplementedError:  # convolutional image models have no embeddings
        table = None
    return set() if table is None else set(table.parameters())


def quantized_layers(model: "nn.Module") -> "list[nn.Linear]":
    """Return the layers with quantized frozen weights (``models.quantization``)."""
    from torch import nn

    linear_layers = (module for module in model.modules() if isinstance(module, nn.Linear))
    return [layer for layer in linear_layers if not layer.weight.is_floating_point()]


def layer_numbers(layer: "nn.Linear") -> int:
    """Return the number of elements that a layer's weight represents, in any storage format."""
    return layer.in_features * layer.out_features


def count_parameters(model: "nn.Module", new: frozenset[str] = frozenset()) -> ParameterCounts:
    """Return the numbers of trainable, new and all parameters of a prepared model.

    Args:
        model: Model after ``Method.prepare``.
        new: Names, in the fresh model, of the parameters that the base checkpoint's architecture
            lacks.

    Raises:
        InputError: No parameter is trainable.
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
"""Every method by its name; a module of this package registers its class."""


FINAL_NORMS = frozenset(
    {"ln_f", "norm", "norm_f", "final_layer_norm", "final_layernorm", "layer_norm", "layernorm"}
)
"""Names that models give the norm after their last block. Norms of the embeddings have other names:
``LayerNorm`` in BERT, ``layernorm_embedding`` in BART, ``word_embeddings_layernorm`` in BLOOM."""


def train_only(
    model: "PreTrainedModel", wanted: "Callable[[str, nn.Parameter], bool]"
) -> "PreTrainedModel":
    """Return the model with ``requires_grad`` set to ``wanted(name, parameter)``."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(wanted(name, parameter))
    return model


def norm_parameters(model: "nn.Module") -> "set[nn.Parameter]":
    """Return weights and biases of the normalization layers.

    The norms of Hugging Face (``LlamaRMSNorm``, ``T5LayerNorm``) share no base class with those of
    torch. The class name decides, because all these names end in ``Norm``, including those of
    torch.
    """
    return {p for module in model.modules() if is_norm(module) for p in module.parameters(False)}


def is_norm(module: "nn.Module") -> bool:
    """Return whether a module is a normalization layer."""
    return type(module).__name__.endswith("Norm")


def output_embeddings(model: "PreTrainedModel") -> "nn.Module | None":
    """Return a language model's head, or None for other models."""
    head: nn.Module | None = model.get_output_embeddings()
    return head


def is_tied(model: "PreTrainedModel") -> bool:
    """Return whether the model has a language-model head that shares the embeddings' weight."""
    head = output_embeddings(model)
    if head is None:
        return False
    inputs = set(model.get_input_embeddings().parameters())
    return any(parameter in inputs for parameter in head.parameters())


def untie_head(model: "PreTrainedModel") -> None:
    """Give a causal language model its own head, a copy of its embeddings.

    The outputs do not change. The saved model contains the head in addition to the embeddings, and
    loads with both.

    Raises:
        InputError: The model is not causal. T5 scales the input of a tied head, and BERT's head has
            a bias that is also tied.
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
    """Return the parameters of the head: those outside the model's body and not tied to it.

    The whole T5 model, including its head, is its own body. Its output embeddings still count as
    the head.
    """
    head = output_embeddings(model)
    head_weights = set() if head is None else set(head.parameters())
    body = set(model.base_model.parameters())
    if model.base_model is model:
        return head_weights - set(model.get_input_embeddings().parameters())
    return (set(model.parameters()) | head_weights) - body


def block_list(model: "PreTrainedModel") -> "nn.ModuleList":
    """Return the transformer blocks, first to last; for a seq2seq model, those of its decoder.

    The blocks are the outermost list of modules of one class; if there are several such lists, the
    one with the most parameters.

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
    """Return the parameters of the norm after the last block; BERT has no such norm."""
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
