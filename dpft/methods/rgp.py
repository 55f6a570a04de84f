"""Reparametrized gradient perturbation, RGP (Yu et al. 2021, arXiv 2106.09352).

Each weight W (p outputs, d inputs) gets gradient carriers L (p, r) and R (r, d) whose gradients,
``G R^T`` and ``L^T G`` for G that of W, are clipped and perturbed in its place: r (p + d) numbers
with noise instead of p d. From the two private gradients follows that of W within the carriers'
spaces (Algorithm 1), which any optimizer then applies to W. Carriers are chosen anew at every step
from what earlier noisy steps made of W, so they cost no privacy.

Unlike the authors' code, no gradient is rescaled (theirs divides that of a classifier by ten),
and carriers come from the update so far, as in the paper (theirs takes the weight as it is).
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
    """Trains the weights of all dense layers through low-rank gradients.

    Dense layers are torch's ``Linear`` and Hugging Face's ``Conv1D``; the head that predicts
    tokens, tied or not, is left out, and so are layers that the base checkpoint lacks, which
    train whole where ``train_new_modules`` says so. Everything else stays as it is, but for what
    ``train_biases`` and ``train_embeddings`` open. ``trainable_parameters`` in reports counts the
    carriers, which get the noise, rather than the weights, which move.
    """

    rank: AtLeastOne = 1
    """Rank r of the carriers; Li et al. 2022, Table 6, searched 1, 2, 4 and 8."""
    power_iterations: AtLeastOne = 1
    """Iterations of the power method that chooses them; one is enough (Yu et al. 2021)."""

    def adapt(self, model: "PreTrainedModel", new: frozenset[str]) -> "PreTrainedModel":
        """Return the model, frozen but for the carriers of its dense layers.

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
        """Chooses the carriers of the step from the weights as they are."""
        from dpft.methods.layers import reparametrized

        for layer in reparametrized(model):
            layer.choose_carriers(self.power_iterations)

    def finish_gradient(self, model: "nn.Module") -> None:
        """Give each weight its gradient from those of its carriers."""
        from dpft.methods.layers import reparametrized

        for layer in reparametrized(model):
            layer.project_gradient()

    def moved_parameters(self, model: "nn.Module") -> "list[nn.Parameter]":
        """Return the weights in the place of their carriers, and what else trains."""
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
        """Write the model as one that was never reparametrized."""
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
