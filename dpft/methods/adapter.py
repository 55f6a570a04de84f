"""Bottleneck adapters (Houlsby et al. 2019, arXiv 1902.00751).

With ``bottleneck=48`` and frozen norms, the adapters have 1.435 % as many parameters as
RoBERTa-base. The Adapter column of Bu et al. 2022, table 4, states 1.4 % but not the settings. For
RoBERTa-large, the share is 1.34 %, while the table states 1.4 %.

``BottleneckMethod`` is the base class of this method and of ``compacter``. It wraps the output
projections of a block, after attention and after the feed-forward layer. An adapter therefore acts
before the residual is added (Houlsby et al. 2019, figure 2).
"""

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeAlias

from pydantic import Field

from dpft.errors import InputError
from dpft.methods.base import (
    METHODS,
    Method,
    is_new,
    norm_parameters,
    train_only,
)
from dpft.non_text_modules import idle_modules, is_inside
from dpft.strict_model import AtLeastOne

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedModel

    from dpft.methods.layers import Projection


BERT = ("attention.output.dense", "output.dense")
GPT2 = ("attn.c_proj", "mlp.c_proj")
BART = ("self_attn.out_proj", "fc2")
LLAMA = ("self_attn.o_proj", "mlp.down_proj")
T5 = ("SelfAttention.o", "DenseReluDense.wo")
PLACES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "deberta", "deberta-v2", "electra", "longformer"), BERT
    ),
    "albert": ("attention.dense", "ffn_output"),
    "distilbert": ("attention.out_lin", "ffn.lin2"),
    "gpt2": GPT2,
    "gpt_neo": ("attention.out_proj", "mlp.c_proj"),
    "gpt_neox": ("attention.dense", "mlp.dense_4h_to_h"),
    **dict.fromkeys(("opt", "bart", "mbart"), BART),
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"), LLAMA
    ),
    **dict.fromkeys(("t5", "mt5"), T5),
}
"""Suffixes of the projections' names, by the ``model_type`` of the architecture."""

AdapterMaker: TypeAlias = "Callable[[int], nn.Module]"
"""Function from the width of a projection's output to a new adapter, which maps (…, width) to the
same shape."""


class BottleneckMethod(Method):
    """Base class of the methods that put adapters after a block's output projections."""

    bottleneck: AtLeastOne | None
    """Width in the middle of an adapter."""
    targets: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Suffixes of the names of the linear modules to adapt; null takes those of the
    architecture."""
    train_norms: bool = False
    """Also train the normalization layers, as Houlsby et al. 2019 do."""

    saves_whole_model: ClassVar[bool] = False
    trains_beside: ClassVar[bool] = True

    @abstractmethod
    def adapter_maker(self, device: "torch.device") -> "AdapterMaker":
        """Return a function that creates the adapters of one model, on its device."""

    def check_width(self, width: int) -> None:
        """Reject a projection that the adapters do not fit.

        Raises:
            InputError: The bottleneck is wider than the projection's output.
        """
        if self.bottleneck is not None and self.bottleneck > width:
            raise InputError(
                f"method.bottleneck must be at most the hidden size {width}, got"
                f" {self.bottleneck}.",
                key="method.bottleneck",
                value=self.bottleneck,
                hint=f"method.bottleneck={width}",
            )

    def adapt(self, model: "PreTrainedModel", new: frozenset[str]) -> "PreTrainedModel":
        """Return the model with trainable adapters and, if ``train_norms`` is set, trainable norms.

        Raises:
            InputError: No module matches the targets, or the adapters do not fit.
        """
        norms = norm_parameters(model) if self.train_norms else set()
        train_only(model, lambda name, p: p in norms and not is_new(name, new))
        return self.insert(model)

    def insert(self, model: "PreTrainedModel") -> "PreTrainedModel":
        """Return the model with adapters inserted."""
        from dpft.methods.layers import AdaptedProjection, output_width

        projections = self._projections(model)
        for layer in projections.values():
            self.check_width(output_width(layer))
        make = self.adapter_maker(next(model.parameters()).device)
        for name, layer in projections.items():
            adapter = make(output_width(layer)).to(model.dtype)
            model.set_submodule(name, AdaptedProjection(layer, adapter))
        return model

    def save(self, model: "PreTrainedModel", folder: Path) -> None:
        """Write the trained weights and the settings, and the base if it is stored nowhere else."""
        from dpft.methods.adapter_files import save_base, save_trained

        save_trained(model, folder, self.model_dump(mode="json"))
        save_base(model, folder, is_added=lambda name: ".adapter." in name)

    def restore(self, model: "PreTrainedModel", folder: Path) -> "PreTrainedModel":
        """Return a fresh base model with the adapters that ``save`` wrote.

        Raises:
            InputError: The folder cannot be read, or belongs to another method or another model.
        """
        from dpft.methods.adapter_files import load_settings, load_trained

        settings = load_settings(folder)
        if settings.get("name") != self.name:
            raise InputError(
                f"{folder} must contain a model of method={self.name}, got"
                f" {settings.get('name')!r}. Restore it with its own method.",
                key=str(folder),
                value=settings.get("name"),
            )
        targets = settings.get("targets")
        settings["targets"] = None if targets is None else tuple(targets)
        type(self)(**settings).insert(model)
        load_trained(model, folder)
        return model

    def _projections(self, model: "PreTrainedModel") -> "dict[str, Projection]":
        """Return the projections to wrap, by name; a module that blocks share occurs once."""
        from dpft.methods.layers import Projection

        suffixes = self.targets or PLACES.get(model.config.model_type)
        idle = idle_modules(model)
        linear = {
            n: m
            for n, m in model.named_modules()
            if isinstance(m, Projection) and not is_inside(n, idle)
        }
        if suffixes is None:
            raise InputError(
                f"method.targets has no default for model type {model.config.model_type!r}. Name"
                f" output projections by their endings, such as {_endings(linear)}.",
                key="method.targets",
            )
        projections = {
            n: m
            for n, m in linear.items()
            if any(f".{n}".endswith(f".{suffix}") for suffix in suffixes)
        }
        if not projections:
            raise InputError(
                f"method.targets must match a linear module, got {', '.join(suffixes)}. The modules"
                f" of the model are called {_endings(linear)}.",
                key="method.targets",
                value=suffixes,
            )
        return projections


def _endings(linear: "dict[str, Projection]") -> str:
    return ", ".join(sorted({name.rpartition(".")[2] for name in linear}))


@METHODS.register("adapter")
class Adapter(BottleneckMethod):
    """Training of two adapters in every block."""

    bottleneck: AtLeastOne = 48
    """Width in the middle of an adapter."""

    def adapter_maker(self, device: "torch.device") -> "AdapterMaker":
        """Return a function that creates adapters on a device."""
        from dpft.methods.layers import dense_bottleneck

        return lambda width: dense_bottleneck(width, self.bottleneck, device)
