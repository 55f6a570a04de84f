"""At how many places of a record each layer works: of a text at each token, of an image it differs.

A convolution's weight is used once for each place of its output, a dense layer's once for each
patch; both follow from the shapes of one record, which runs through the model without values.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from dpft.data.layout import Layout
from dpft.training.self_check import synthetic_losses

MATRIX = 2


def record_positions(model: nn.Module, layout: Layout) -> Mapping[str, float] | None:
    """Returns how often a record uses each layer, by the layer's name; None for texts.

    Args:
        model: After ``Method.prepare``, on ``meta``; it is left on fake tensors.
        layout: How rows lie in a batch.
    """
    if layout.has_lengths:
        return None
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        model.to_empty(device="cpu")
    found: dict[str, float] = {}

    def watch(name: str, module: nn.Module, weight: Tensor) -> Any:
        def called(_: nn.Module, given: Any, outcome: Any) -> None:
            if isinstance(outcome, Tensor):
                found[name] = found.get(name, 0.0) + outcome.numel() / len(weight)

        return module.register_forward_hook(called)

    matrices = {
        name: (module, parameter)
        for name, module in model.named_modules()
        for own, parameter in module.named_parameters(recurse=False)
        if own == "weight" and parameter.dim() >= MATRIX
    }
    handles = [watch(name, module, weight) for name, (module, weight) in matrices.items()]
    losses = synthetic_losses(model, 1, 1, layout=layout)
    with fake:
        losses()
    for handle in handles:
        handle.remove()
    return found
