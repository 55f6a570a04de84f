"""Reparametrized gradient perturbation, RGP (Yu et al. 2021, arXiv 2106.09352).

Each weight W (p outputs, d inputs) gets gradient carriers L (p, r) and R (r, d). With G as the
gradient of W, their gradients are ``G R^T`` and ``L^T G``. These gradients are clipped and
perturbed instead of G, so r (p + d) numbers get noise instead of p d. Algorithm 1 computes the
gradient of W within the carriers' spaces from the two private gradients, and any optimizer can
apply it to W. The carriers of each step are computed from the W of earlier noisy steps, so they
cost no privacy.

This implementation differs from the authors' code in two ways. It rescales no gradient, while their
code divides the gradient of a classifier by ten. It computes the carriers from the change of the
weight so far, as in the paper, while their code uses the weight itself.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpft.errors import InputError
from dpft.methods.base import LARGEST_FILE, METHODS, Method
from dpft.strict_model import AtLeastOne

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


@METHODS.register("rgp")
class RGP(Method):
    """Training of the weights of all dense layers through low-rank gradients.

    Dense layers are torch's ``Linear`` and Hugging Face's ``Conv1D``. The head that predicts
    tokens, tied or not, is excluded. Layers that the base checkpoint lacks are also excluded; they
    train as a whole if ``train_new_modules`` is set. All other parameters are frozen, unless
    ``train_biases`` or ``train_embeddings`` makes them trainable. ``trainable_parameters`` in
    reports counts the carriers, which get the noise, not the weights, which are updated.
    """

    rank: AtLeastOne = 1
    """Rank r of the carriers; Li et al. 2022, Table 6, searched 1, 2, 4 and 8."""
    power_iterations: AtLeastOne = 1
    """Number of iterations of the power method that computes the carriers; one is enough (Yu et al.
    2021)."""

    def adapt(self, model: "PreTrainedModel", new: frozenset[str]) -> "PreTrainedModel":
        """Return the model with everything frozen except the carriers of its dense layers.

        Raises:
            InputError: A layer has fewer inputs or outputs than ``rank``, or shares its weight.
        """
        from dpft.methods.layers import ReparametrizedLinear, dense_layers

        model.requires_grad_(False)
        wrapped: dict[nn.Module, ReparametrizedLinear] = {}
        for name, layer in dense_layers(model, new).items():
            smaller = min(layer.weight.shape)
            if self.rank > smaller:
                raise InputError(
                    f"method.rank must be at most the smaller side of every dense layer, {smaller}"
                    f" in {name}, got {self.rank}.",
                    key="method.rank",
                    value=self.rank,
                    hint=f"method.rank={smaller}",
                )
            wrapped[layer] = ReparametrizedLinear(layer, self.rank)
        for parent in [module for module in model.modules() if module not in wrapped]:
            for name, child in parent._modules.items():
                if child in wrapped:
                    setattr(parent, name, wrapped[child])
        self.begin_step(model, 0)
        return model

    def begin_step(self, model: "nn.Module", step: int) -> None:
        """Choose the carriers of the step from the current weights."""
        from dpft.methods.layers import reparametrized

        for layer in reparametrized(model):
            layer.choose_carriers(self.power_iterations)

    def finish_gradient(self, model: "nn.Module") -> None:
        """Compute the gradient of each weight from the gradients of its carriers."""
        from dpft.methods.layers import reparametrized

        for layer in reparametrized(model):
            layer.project_gradient()

    def moved_parameters(self, model: "nn.Module") -> "list[nn.Parameter]":
        """Return the weights instead of their carriers, and the other trainable parameters."""
        from dpft.methods.layers import reparametrized

        layers = reparametrized(model)
        weights = {layer.base_layer.weight for layer in layers}
        carriers = {p for layer in layers for p in (layer.left.weight, layer.right.weight)}
        return [
            parameter
            for parameter in model.parameters()
            if parameter in weights or (parameter.requires_grad and parameter not in carriers)
        ]

    def save(self, model: "PreTrainedModel", folder: Path) -> None:
        """Write the model in its original form, without the reparametrization."""
        from dpft.methods.layers import CARRIERS, ReparametrizedLinear

        names = [name for name, m in model.named_modules() if isinstance(m, ReparametrizedLinear)]
        state: dict[str, Any] = model.state_dict()
        for name in names:
            for carrier in CARRIERS:
                del state[f"{name}.{carrier}"]
            for parameter in ("weight", "bias"):
                if (value := state.pop(f"{name}.base_layer.{parameter}", None)) is not None:
                    state[f"{name}.{parameter}"] = value
        model.save_pretrained(
            folder, state_dict=state, safe_serialization=True, max_shard_size=LARGEST_FILE
        )
