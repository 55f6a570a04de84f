"""Layers that methods insert into a model: bottleneck adapters and RGP's low-rank layers.

They stand apart from the methods (``adapter``, ``compacter``, ``rgp``) because a method is a part
of the configuration, which is read before torch is imported.
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
"""Houlsby et al. 2019, section 3.6: a normal truncated at two standard deviations; the adapter is
then nearly the identity, and every weight has a gradient from the first step."""
RANK_ONE_STD = 0.1
"""Standard deviation of s and t at the start; with A of variance 1/n, entries of W have one of
0.01 (Houlsby's)."""

Projection = nn.Linear | Conv1D


class AdaptedProjection(nn.Module):
    """A projection, and an adapter on its output.

    The projection is called ``base_layer``, as in peft, so that a parameter's name still leads
    to its name in the model itself (``base.original_name``).
    """

    def __init__(self, base_layer: Projection, adapter: nn.Module) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.adapter = adapter

    @property
    def weight(self) -> Tensor:
        """The projection's weight: T5 asks for its dtype."""
        weight: Tensor = self.base_layer.weight
        return weight

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the adapted projection of (…, inputs), shape (…, width)."""
        outputs: Tensor = self.adapter(self.base_layer(inputs))
        return outputs


def output_width(layer: Projection) -> int:
    """Return the width of a projection's output."""
    return int(layer.out_features if isinstance(layer, nn.Linear) else layer.nf)


class Bottleneck(nn.Module):
    """``h + up(gelu(down(h)))``."""

    def __init__(self, down: nn.Module, up: nn.Module) -> None:
        super().__init__()
        self.down, self.act, self.up = down, nn.GELU(), up

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the adapted hidden states, shape (b, …, width) as given."""
        adapted: Tensor = hidden + self.up(self.act(self.down(hidden)))
        return adapted


def dense_bottleneck(width: int, bottleneck: int, device: torch.device) -> Bottleneck:
    """Return a bottleneck of two dense layers, initialized as Houlsby et al. do."""
    down = nn.Linear(width, bottleneck, device=device)
    up = nn.Linear(bottleneck, width, device=device)
    for layer in (down, up):
        nn.init.trunc_normal_(layer.weight, std=INITIAL_STD, a=-2 * INITIAL_STD, b=2 * INITIAL_STD)
        nn.init.zeros_(layer.bias)
    return Bottleneck(down, up)


class PHMLinear(nn.Module):
    """A dense layer with a parameterized hypercomplex weight.

    For x seen as X of shape (n, inputs / n), ``(A_k (x) s_k t_k^T) x`` is ``A_k X t_k s_k^T``.
    """

    def __init__(self, inputs: int, outputs: int, mixers: nn.ModuleList) -> None:
        """Make a layer.

        Args:
            inputs: Width of the input, a multiple of n.
            outputs: Width of the output, a multiple of n.
            mixers: The n dense layers, each of weight ``A_k``, that all layers share.
        """
        super().__init__()
        self.n = len(mixers)
        device = mixers[0].weight.device
        self.right = nn.Linear(inputs // self.n, self.n, bias=False, device=device)
        self.mixers = mixers
        self.left = nn.Linear(self.n, outputs // self.n, bias=False, device=device)
        # A look-up in place of a bare parameter: the clipper has a rule for it, and needs not run
        # the layer once per example.
        self.bias = nn.Embedding(self.n, outputs // self.n, device=device)
        for layer in (self.right, self.left):
            nn.init.normal_(layer.weight, std=RANK_ONE_STD)
        nn.init.zeros_(self.bias.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the layer's output, shape (b, …, outputs), for (b, …, inputs)."""
        projected = self.right(hidden.reshape(*hidden.shape[:-1], self.n, -1))
        mixed = [mix(projected[..., k]) for k, mix in enumerate(self.mixers)]
        outputs: Tensor = self.left(torch.stack(mixed, dim=-1)).flatten(-2)
        count, between = len(hidden), [1] * (hidden.dim() - 2)
        numbers = torch.arange(self.n, device=hidden.device).expand(count, self.n)
        rows: Tensor = self.bias(numbers)  # the bias of each example, (b, 1, …, outputs) below
        return outputs + rows.reshape(count, *between, -1).to(outputs.dtype)


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
        """Wrap ``layer`` and freezes it; carriers of ``rank`` are still to be chosen."""
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
        """Return the layer's own weight, which some models look at."""
        return self.base_layer.weight

    @property
    def bias(self) -> Tensor | None:
        """Return the layer's own bias."""
        return self.base_layer.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the frozen layer's output; the carriers take part in gradients only."""
        outputs: Tensor = self.base_layer(inputs)
        if not torch.is_grad_enabled():
            return outputs
        constant = F.linear(F.linear(inputs, self.right_constant), self.left_constant)
        difference: Tensor = self.left(self.right(inputs)) - constant
        return outputs + difference

    @torch.no_grad()
    def choose_carriers(self, iterations: int) -> None:
        """Set the carriers by the power method on what training has made of the weight so far.

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
        generator = torch.Generator().manual_seed(0)  # the same for everybody: not secret
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
        """Give the weight its gradient within the carriers' spaces.

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
        """Return a matrix of the layer's layout as (outputs, inputs), or back."""
        return weight.t() if self._transposed else weight


def dense_layers(model: PreTrainedModel, new: frozenset[str]) -> dict[str, nn.Linear | Conv1D]:
    """Return the layers to reparametrize by name.

    Raises:
        InputError: Two layers share a weight, so its gradient would come in two parts.
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
    """Return the layers of a model that carriers take the gradient of."""
    return [module for module in model.modules() if isinstance(module, ReparametrizedLinear)]


def _bare_linear(inputs: int, outputs: int, *, like: Tensor) -> nn.Linear:
    """Return a layer of zeros; no generator is asked."""
    layer: nn.Linear = nn.utils.skip_init(
        nn.Linear, inputs, outputs, bias=False, device=like.device, dtype=like.dtype
    )
    nn.init.zeros_(layer.weight)
    return layer
