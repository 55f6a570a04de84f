"""Reparametrized gradient perturbation, RGP (Yu et al. 2021, arXiv 2106.09352).

Each weight W (p outputs, d inputs) gets gradient carriers L (p, r) and R (r, d) whose gradients,
``G R^T`` and ``L^T G`` for G that of W, are clipped and perturbed in its place: r (p + d) numbers
with noise instead of p d. From the two private gradients follows that of W within the carriers'
spaces (Algorithm 1), which any optimizer then applies to W. Carriers are chosen anew at every step
from what earlier noisy steps made of W, so they cost no privacy.

Unlike the authors' code, no gradient is rescaled (theirs divides that of a classifier by ten),
and carriers come from the update so far, as in the paper (theirs takes the weight as it is).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from dpft.errors import InputError
from dpft.methods.base import METHODS, Method, input_embeddings

CARRIERS = ("left.weight", "right.weight", "initial_weight")
"""Names of the parameters that a reparametrized layer adds to the layer it wraps."""


class ReparametrizedLinear(nn.Module):
    """A dense layer with a frozen weight whose gradient two carriers take.

    The carriers' path takes away again, as a constant, what it adds, so outputs are the layer's
    own whatever the carriers are, and only gradients know of them. They are layers, so that
    per-example clipping treats them as it treats any.
    """

    initial_weight: Tensor
    """The layer's weight before training; part of a checkpoint."""
    right_constant: Tensor
    left_constant: Tensor
    """The carriers' values, which follow them from choice to choice and take no gradient."""

    def __init__(self, layer: nn.Linear | Conv1D, rank: int) -> None:
        """Wraps ``layer`` and freezes it; carriers of ``rank`` are still to be chosen."""
        super().__init__()
        self.base_layer = layer.requires_grad_(False)
        self._transposed = isinstance(layer, Conv1D)
        weight = layer.weight
        self.register_buffer("initial_weight", weight.detach().clone())
        outputs, inputs = self._dense(weight).shape
        self.in_features, self.out_features = inputs, outputs
        self.right = _bare_linear(inputs, rank, like=weight)
        self.left = _bare_linear(rank, outputs, like=weight)
        # Copies, not the weights themselves: clipping would see those used behind their layers.
        for name, layer_of in (("right_constant", self.right), ("left_constant", self.left)):
            self.register_buffer(name, layer_of.weight.detach().clone(), persistent=False)

    @property
    def weight(self) -> Tensor:
        """Returns the layer's own weight, which some models look at."""
        return self.base_layer.weight

    @property
    def bias(self) -> Tensor | None:
        """Returns the layer's own bias."""
        return self.base_layer.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns what the layer itself does; the carriers take part in gradients only."""
        outputs: Tensor = self.base_layer(inputs)
        if not torch.is_grad_enabled():
            return outputs
        constant = F.linear(F.linear(inputs, self.right_constant), self.left_constant)
        difference: Tensor = self.left(self.right(inputs)) - constant
        return outputs + difference

    @torch.no_grad()
    def choose_carriers(self, iterations: int) -> None:
        """Sets the carriers by the power method on what training has made of the weight so far.

        Yu et al. 2021, Algorithm 2, from a start that is the same for all: a function of the
        weight and its first value alone. Before the weight has moved there is no update to look
        at, and the first value itself, which is public, takes its place.
        """
        weight = self.base_layer.weight
        if weight.is_meta:
            return
        update = self._dense(weight - self.initial_weight)
        if not bool(update.any()):
            update = self._dense(weight)
        right = _start(self.right.weight)
        for _ in range(iterations):
            left = torch.linalg.qr(update @ right.t()).Q
            right = left.t() @ update
        self.left.weight.copy_(left)
        self.right.weight.copy_(torch.linalg.qr(right.t()).Q.t())
        self.left_constant.copy_(self.left.weight)
        self.right_constant.copy_(self.right.weight)

    @torch.no_grad()
    def project_gradient(self) -> None:
        """Gives the weight its gradient within the carriers' spaces.

        ``dL R + L dR - L L^T dL R`` (Yu et al. 2021, Algorithm 1); without clipping and noise
        that is ``G R^T R + L L^T G - L L^T G R^T R``. Only without privacy can a layer that no
        loss used have none.
        """
        left, right = self.left.weight, self.right.weight
        d_left, d_right = left.grad, right.grad
        if d_left is None or d_right is None:
            self.base_layer.weight.grad = None
            return
        within = left.t() @ d_left
        gradient = d_left @ right + left @ (d_right - within @ right)
        self.base_layer.weight.grad = self._dense(gradient).contiguous()

    def _dense(self, weight: Tensor) -> Tensor:
        """Returns a matrix of the layer's layout as (outputs, inputs), or back."""
        return weight.t() if self._transposed else weight


@METHODS.register("rgp")
@dataclass(frozen=True, kw_only=True)
class RGP(Method):
    """Trains the weights of all dense layers through low-rank gradients.

    Dense layers are torch's ``Linear`` and Hugging Face's ``Conv1D``; the head that predicts
    tokens, tied or not, is left out, and so are layers that the base checkpoint lacks, which
    train whole where ``train_new_modules`` says so. Everything else stays as it is, but for what
    ``train_biases`` and ``train_embeddings`` open. ``trainable_parameters`` in reports counts the
    carriers, which get the noise, rather than the weights, which move.
    """

    rank: int = 1
    """Rank r of the carriers; Li et al. 2022, Table 6, searched 1, 2, 4 and 8."""
    power_iterations: int = 1
    """Iterations of the power method that chooses them; one is enough (Yu et al. 2021)."""

    def __post_init__(self) -> None:
        for name in ("rank", "power_iterations"):
            if getattr(self, name) < 1:
                raise InputError(f"method.{name} must be at least 1, got {getattr(self, name)}.")

    def adapt(self, model: PreTrainedModel, new: frozenset[str]) -> PreTrainedModel:
        """Returns the model, frozen but for the carriers of its dense layers.

        Raises:
            InputError: A layer has fewer inputs or outputs than ``rank``, or shares its weight.
        """
        model.requires_grad_(False)
        wrapped: dict[nn.Module, ReparametrizedLinear] = {}
        for name, layer in _dense_layers(model, new).items():
            smaller = min(layer.weight.shape)
            if self.rank > smaller:
                raise InputError(
                    f"method.rank must be at most the smaller side of every dense layer, {smaller}"
                    f" in {name}, got {self.rank}; lower it."
                )
            wrapped[layer] = ReparametrizedLinear(layer, self.rank)
        for parent in [module for module in model.modules() if module not in wrapped]:
            for name, child in parent._modules.items():
                if child in wrapped:
                    setattr(parent, name, wrapped[child])
        self.begin_step(model, 0)
        return model

    def begin_step(self, model: nn.Module, step: int) -> None:
        """Chooses the carriers of the step from the weights as they are."""
        for layer in _reparametrized(model):
            layer.choose_carriers(self.power_iterations)

    def finish_gradient(self, model: nn.Module) -> None:
        """Gives each weight its gradient from those of its carriers."""
        for layer in _reparametrized(model):
            layer.project_gradient()

    def moved_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Returns the weights in the place of their carriers, and what else trains."""
        layers = _reparametrized(model)
        weights = {layer.base_layer.weight for layer in layers}
        carriers = {p for layer in layers for p in (layer.left.weight, layer.right.weight)}
        return [
            parameter
            for parameter in model.parameters()
            if parameter in weights or (parameter.requires_grad and parameter not in carriers)
        ]

    def save(self, model: PreTrainedModel, folder: Path) -> None:
        """Writes the model as one that was never reparametrized."""
        names = [name for name, m in model.named_modules() if isinstance(m, ReparametrizedLinear)]
        state: dict[str, Any] = model.state_dict()
        for name in names:
            for carrier in CARRIERS:
                del state[f"{name}.{carrier}"]
            for own in ("weight", "bias"):
                if (value := state.pop(f"{name}.base_layer.{own}", None)) is not None:
                    state[f"{name}.{own}"] = value
        model.save_pretrained(folder, state_dict=state, safe_serialization=True)


def _dense_layers(model: PreTrainedModel, new: frozenset[str]) -> dict[str, nn.Linear | Conv1D]:
    """Returns the layers to reparametrize by name.

    Raises:
        InputError: Two layers share a weight, so its gradient would come in two parts.
    """
    left_out = input_embeddings(model)
    head: nn.Module | None = model.get_output_embeddings()
    if head is not None:
        left_out |= set(head.parameters())
    layers: dict[str, nn.Linear | Conv1D] = {}
    seen: set[nn.Parameter] = set()
    for name, module in model.named_modules():
        if type(module) not in (nn.Linear, Conv1D):
            continue
        if module.weight in left_out or f"{name}.weight" in new:
            continue
        if module.weight in seen:
            raise InputError(
                f"method=rgp must have a weight for each dense layer, got a shared one in {name};"
                " choose another method, such as method=full."
            )
        seen.add(module.weight)
        layers[name] = module
    return layers


def _reparametrized(model: nn.Module) -> list[ReparametrizedLinear]:
    return [module for module in model.modules() if isinstance(module, ReparametrizedLinear)]


def _bare_linear(inputs: int, outputs: int, *, like: Tensor) -> nn.Linear:
    """Returns a layer of zeros; no generator is asked."""
    layer: nn.Linear = nn.utils.skip_init(
        nn.Linear, inputs, outputs, bias=False, device=like.device, dtype=like.dtype
    )
    nn.init.zeros_(layer.weight)
    return layer


def _start(like: Tensor) -> Tensor:
    """Returns the power method's start, standard normal, the same for everybody: not secret."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(like.shape, generator=generator).to(like)
