"""The linear layer of RGP: a frozen weight, whose gradient two low-rank carriers take.

It stands apart from the method, ``rgp``, because a method is a part of the configuration, which is
read before torch is imported.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from dpft.errors import InputError
from dpft.methods.base import input_embeddings
from dpft.parallel.local import cut_like, whole

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
        """Returns the frozen layer's output; the carriers take part in gradients only."""
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
        if self.base_layer.weight.is_meta:
            return
        weight = whole(self.base_layer.weight)
        update = self._dense(weight - self.initial_weight)
        if not bool(update.any()):
            update = self._dense(weight)
        right = _start(whole(self.right.weight))
        for _ in range(iterations):
            left = torch.linalg.qr(update @ right.t()).Q
            right = left.t() @ update
        right = torch.linalg.qr(right.t()).Q.t()
        for layer, constant, values in (
            (self.left, self.left_constant, left),
            (self.right, self.right_constant, right),
        ):
            layer.weight.copy_(cut_like(layer.weight, values.contiguous()))
            constant.copy_(values)

    @torch.no_grad()
    def project_gradient(self) -> None:
        """Gives the weight its gradient within the carriers' spaces.

        ``dL R + L dR - L L^T dL R`` (Yu et al. 2021, Algorithm 1); without clipping and noise
        that is ``G R^T R + L L^T G - L L^T G R^T R``. Only without privacy can a layer that no
        loss used have none.
        """
        gradients = self.left.weight.grad, self.right.weight.grad
        if gradients[0] is None or gradients[1] is None:
            self.base_layer.weight.grad = None
            return
        left, right = whole(self.left.weight), whole(self.right.weight)
        d_left, d_right = whole(gradients[0]), whole(gradients[1])
        within = left.t() @ d_left
        gradient = d_left @ right + left @ (d_right - within @ right)
        weight = self.base_layer.weight
        weight.grad = cut_like(weight, self._dense(gradient).contiguous())

    def _dense(self, weight: Tensor) -> Tensor:
        """Returns a matrix of the layer's layout as (outputs, inputs), or back."""
        return weight.t() if self._transposed else weight


def dense_layers(model: PreTrainedModel, new: frozenset[str]) -> dict[str, nn.Linear | Conv1D]:
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


def reparametrized(model: nn.Module) -> list[ReparametrizedLinear]:
    """Returns the layers of a model that carriers take the gradient of."""
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
