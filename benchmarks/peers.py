"""Opacus, the peer that PyPI has: the same micro-batch in its two modes.

``hooks`` keeps a gradient per example; ``ghost`` takes norms first and runs a second backward
pass. Noise is no part of a micro-batch here either; an update adds it once. Opacus refuses tied
weights, so the caller gives it an untied model, and it has no rule for Hugging Face's Conv1D, so
those layers become ``nn.Linear`` of the same arithmetic.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
    GradSampleModuleFastGradientClipping,
)
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from benchmarks.workload import Workload, make_losses


def opacus_micro_batch(
    model: nn.Module, workload: Workload, max_grad_norm: float
) -> Callable[[], object]:
    """Return forward, backward and accumulation of the clipped sum as Opacus does them.

    The sum of the micro-batches so far stands aside meanwhile, as in Opacus's ``summed_grad``.

    Args:
        model: As ``with_dense_layers`` returns it.
        workload: Which mode, and the inputs.
        max_grad_norm: The clipping norm.
    """
    make = {"opacus_hooks": _hooks, "opacus_ghost": _ghost}[workload.engine]
    parameters = [p for p in model.parameters() if p.requires_grad]
    replace_gradients = make(model, workload, max_grad_norm)

    def micro_batch() -> None:
        sums = [p.grad for p in parameters]
        for parameter in parameters:
            parameter.grad = None
        replace_gradients()
        for parameter, total in zip(parameters, sums, strict=True):
            if total is not None:
                parameter.grad = total.add_(parameter.grad)

    return micro_batch


def add_opacus_noise(parameters: Sequence[nn.Parameter], noise_std: float) -> None:
    """Add noise as Opacus's optimizer does: one normal tensor for each parameter."""
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad = parameter.grad + torch.normal(
            0.0, noise_std, parameter.shape, device=parameter.device
        )


def _hooks(model: nn.Module, workload: Workload, max_grad_norm: float) -> Callable[[], object]:
    wrapped = GradSampleModule(model, loss_reduction="sum")
    losses = make_losses(_like(model, wrapped), workload)

    def micro_batch() -> None:
        losses().sum().backward()
        parameters = [p for p in wrapped.parameters() if p.requires_grad]
        norms = torch.stack([p.grad_sample.flatten(1).norm(2, dim=1) for p in parameters]).norm(
            2, dim=0
        )
        factors = (max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
        for parameter in parameters:
            parameter.grad = torch.einsum("i,i...", factors, parameter.grad_sample)
            parameter.grad_sample = None

    return micro_batch


def _ghost(model: nn.Module, workload: Workload, max_grad_norm: float) -> Callable[[], object]:
    wrapped = GradSampleModuleFastGradientClipping(
        model, loss_reduction="sum", max_grad_norm=max_grad_norm, use_ghost_clipping=True
    )
    losses = make_losses(_like(model, wrapped), workload)

    def micro_batch() -> None:
        per_example = losses()
        per_example.sum().backward(retain_graph=True)
        factors = wrapped.get_clipping_coef().detach()
        for parameter in wrapped.parameters():
            parameter.grad = None
        wrapped.disable_hooks()
        (factors * per_example).sum().backward()
        wrapped.enable_hooks()

    return micro_batch


def with_dense_layers(model: nn.Module) -> nn.Module:
    """Return the model with each ``Conv1D`` replaced by the ``nn.Linear`` it transposes."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Conv1D):
                inputs, outputs = child.weight.shape
                linear = nn.Linear(inputs, outputs).to(child.weight.device)
                with torch.no_grad():
                    linear.weight.copy_(child.weight.t())
                    linear.bias.copy_(child.bias)
                linear.weight.requires_grad = child.weight.requires_grad
                linear.bias.requires_grad = child.bias.requires_grad
                setattr(module, name, linear)
    return model


class _Called:
    """A wrapped model that still shows the configuration of the one inside."""

    def __init__(self, config: Any, call: Callable[..., Any]) -> None:
        self.config, self._call = config, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)


def _like(inner: nn.Module, wrapped: Callable[..., Tensor]) -> Any:
    return _Called(inner.config, wrapped)
