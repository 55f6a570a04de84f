"""Layers that methods insert into a model: bottleneck adapters and RGP's low-rank layers.

The layers are separate from the methods (``adapter``, ``compacter``, ``rgp``), because a method is
part of the configuration, which is read before torch is imported.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from dpft.errors import InputError
from dpft.methods.base import input_embeddings
from dpft.non_text_modules import idle_modules, is_inside
from dpft.parallel.sharding import cut_like, whole

INITIAL_STD = 1e-2
"""Standard deviation of the initial weights, which are normal and truncated at two standard
deviations (Houlsby et al. 2019, section 3.6). The adapter therefore starts close to the identity,
and every weight has a gradient from the first step."""
RANK_ONE_STD = 0.1
"""Initial standard deviation of s and t. If the entries of A have variance 1/n, the entries of W
have a standard deviation of 0.01, as in Houlsby et al. 2019."""

Projection = nn.Linear | Conv1D


class AdaptedProjection(nn.Module):
    """A projection with an adapter on its output.

    The projection is called ``base_layer``, as in peft, so that ``base.original_name`` can derive
    the name of a parameter in the unwrapped model.
    """

    def __init__(self, base_layer: Projection, adapter: nn.Module) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.adapter = adapter

    @property
    def weight(self) -> Tensor:
        """Weight of the projection; T5 reads its dtype."""
        weight: Tensor = self.base_layer.weight
        return weight

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the adapted projection of inputs (…, inputs), shape (…, width)."""
        outputs: Tensor = self.adapter(self.base_layer(inputs))
        return outputs


def output_width(layer: Projection) -> int:
    """Return the width of a projection's output."""
    return int(layer.out_features if isinstance(layer, nn.Linear) else layer.nf)


class Bottleneck(nn.Module):
    """Bottleneck adapter, ``h + up(gelu(down(h)))``."""

    def __init__(self, down: nn.Module, up: nn.Module) -> None:
        super().__init__()
        self.down, self.act, self.up = down, nn.GELU(), up

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the adapted hidden states; the shape (b, …, width) does not change."""
        adapted: Tensor = hidden + self.up(self.act(self.down(hidden)))
        return adapted


def dense_bottleneck(width: int, bottleneck: int, device: torch.device) -> Bottleneck:
    """Return a bottleneck of two dense layers, initialized as in Houlsby et al. 2019."""
    down = nn.Linear(width, bottleneck, device=device)
    up = nn.Linear(bottleneck, width, device=device)
    for layer in (down, up):
        nn.init.trunc_normal_(layer.weight, std=INITIAL_STD, a=-2 * INITIAL_STD, b=2 * INITIAL_STD)
        nn.init.zeros_(layer.bias)
    return Bottleneck(down, up)


class PHMLinear(nn.Module):
    """A dense layer with a parameterized hypercomplex weight.

    If x is viewed as X of shape (n, inputs / n), ``(A_k (x) s_k t_k^T) x`` is ``A_k X t_k s_k^T``.
    """

    def __init__(self, inputs: int, outputs: int, mixers: nn.ModuleList) -> None:
        """Create the layer.

        Args:
            inputs: Width of the input, a multiple of n.
            outputs: Width of the output, a multiple of n.
            mixers: The n dense layers with the weights ``A_k``, which all layers share.
        """
        super().__init__()
        self.n = len(mixers)
        device = mixers[0].weight.device
        self.right = nn.Linear(inputs // self.n, self.n, bias=False, device=device)
        self.mixers = mixers
        self.left = nn.Linear(self.n, outputs // self.n, bias=False, device=device)
        # A look-up instead of a bare parameter: the clipper has a rule for look-ups, so the layer
        # needs no single-example execution.
        self.bias = nn.Embedding(self.n, outputs // self.n, device=device)
        for layer in (self.right, self.left):
            nn.init.normal_(layer.weight, std=RANK_ONE_STD)
        nn.init.zeros_(self.bias.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the layer's output, shape (b, …, outputs), for inputs (b, …, inputs)."""
        projected = self.right(hidden.reshape(*hidden.shape[:-1], self.n, -1))
        mixed = [mix(projected[..., k]) for k, mix in enumerate(self.mixers)]
        outputs: Tensor = self.left(torch.stack(mixed, dim=-1)).flatten(-2)
        count, between = len(hidden), [1] * (hidden.dim() - 2)
        numbers = torch.arange(self.n, device=hidden.device).expand(count, self.n)
        rows: Tensor = self.bias(numbers)  # the bias of each example, (b, 1, …, outputs) below
        return outputs + rows.reshape(count, *between, -1).to(outputs.dtype)


CARRIERS = ("left.weight", "right.weight", "initial_weight")
"""Names of the tensors that a reparametrized layer adds to the layer that it wraps."""


class ReparametrizedLinear(nn.Module):
    """A dense layer with a frozen weight whose gradient is computed through two carriers.

    The path through the carriers subtracts, as a constant, the value that it adds. The outputs are
    therefore those of the wrapped layer for all carriers, and only gradients depend on the
    carriers. The carriers are layers, so that per-example clipping handles them like other layers.
    """

    initial_weight: Tensor
    """Weight of the layer before training; part of a checkpoint."""
    right_constant: Tensor
    left_constant: Tensor
    """Copies of the two carriers without gradient, updated whenever new carriers are chosen."""

    def __init__(self, layer: nn.Linear | Conv1D, rank: int) -> None:
        """Wrap ``layer`` and freeze it; ``choose_carriers`` must set the carriers of ``rank``."""
        super().__init__()
        self.base_layer = layer.requires_grad_(False)
        self._transposed = isinstance(layer, Conv1D)
        weight = layer.weight
        self.register_buffer("initial_weight", weight.detach().clone())
        outputs, inputs = self._dense(weight).shape
        self.in_features, self.out_features = inputs, outputs
        self.right = _bare_linear(inputs, rank, like=weight)
        self.left = _bare_linear(rank, outputs, like=weight)
        # Copies, because clipping would detect a use of the weights themselves outside their
        # layers.
        for name, layer_of in (("right_constant", self.right), ("left_constant", self.left)):
            self.register_buffer(name, layer_of.weight.detach().clone(), persistent=False)

    @property
    def weight(self) -> Tensor:
        """Weight of the wrapped layer, which some models read."""
        return self.base_layer.weight

    @property
    def bias(self) -> Tensor | None:
        """Bias of the wrapped layer."""
        return self.base_layer.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the frozen layer's output; the carriers affect only gradients."""
        outputs: Tensor = self.base_layer(inputs)
        if not torch.is_grad_enabled():
            return outputs
        constant = F.linear(F.linear(inputs, self.right_constant), self.left_constant)
        difference: Tensor = self.left(self.right(inputs)) - constant
        return outputs + difference

    @torch.no_grad()
    def choose_carriers(self, iterations: int) -> None:
        """Set the carriers by the power method on the change of the weight during training.

        This is Algorithm 2 of Yu et al. 2021. It starts from fixed public values, so the carriers
        depend only on the weight and its initial value. Before the first update, the weight has not
        changed, so the method is applied to the initial weight, which is public.
        """
        if self.base_layer.weight.is_meta:
            return
        weight = whole(self.base_layer.weight)
        update = self._dense(weight - self.initial_weight)
        if not bool(update.any()):
            update = self._dense(weight)
        generator = torch.Generator().manual_seed(0)  # a fixed, public seed
        like = whole(self.right.weight)
        right = torch.randn(like.shape, generator=generator).to(like)
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
        """Set the weight's gradient, projected onto the spaces that the carriers span.

        The gradient is ``dL R + L dR - L L^T dL R`` (Yu et al. 2021, Algorithm 1). Without clipping
        and noise, this equals ``G R^T R + L L^T G - L L^T G R^T R``. A layer that no loss used has
        no gradient, which occurs only without privacy.
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
        """Convert a matrix from the layer's layout to (outputs, inputs), or back."""
        return weight.t() if self._transposed else weight


def dense_layers(model: PreTrainedModel, new: frozenset[str]) -> dict[str, nn.Linear | Conv1D]:
    """Return the layers to reparametrize, by name.

    Raises:
        InputError: Two layers share a weight, whose gradient would come in two parts.
    """
    left_out = input_embeddings(model)
    head: nn.Module | None = model.get_output_embeddings()
    if head is not None:
        left_out |= set(head.parameters())
    idle = idle_modules(model)
    layers: dict[str, nn.Linear | Conv1D] = {}
    seen: set[nn.Parameter] = set()
    for name, module in model.named_modules():
        if type(module) not in (nn.Linear, Conv1D):
            continue
        if module.weight in left_out or f"{name}.weight" in new or is_inside(name, idle):
            continue
        if module.weight in seen:
            raise InputError(
                f"method=rgp needs a separate weight for each dense layer, but {name} shares its"
                " weight.",
                key="method",
                value="rgp",
                hint="method=full",
            )
        seen.add(module.weight)
        layers[name] = module
    return layers


def reparametrized(model: nn.Module) -> list[ReparametrizedLinear]:
    """Return the reparametrized layers of a model."""
    return [module for module in model.modules() if isinstance(module, ReparametrizedLinear)]


def _bare_linear(inputs: int, outputs: int, *, like: Tensor) -> nn.Linear:
    """Return a linear layer of zeros, created without using a random generator."""
    layer: nn.Linear = nn.utils.skip_init(
        nn.Linear, inputs, outputs, bias=False, device=like.device, dtype=like.dtype
    )
    nn.init.zeros_(layer.weight)
    return layer
