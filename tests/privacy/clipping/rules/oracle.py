"""One layer against the one-at-a-time loop, as every rule is tested."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.choices import DEFAULT_MEMORY_MB


def assert_equals_the_loop(
    layer: nn.Module,
    forward: Callable[[], Tensor],
    *,
    engine: str = "book_keeping",
    memory_mb: int = DEFAULT_MEMORY_MB,
    units: Tensor | None = None,
) -> None:
    """Compares norms, clipped sum and input gradient of a layer in float64.

    Args:
        layer: The layer, its parameters float64.
        forward: Computes the layer's output, shape (b, …).
        engine: What is compared with the loop.
        memory_mb: What it may spend on instantiated gradients.
        units: Privacy unit of each example; None: each its own.
    """
    weights = None
    results = []
    for each in (engine, "loop"):
        layer.zero_grad()

        def losses() -> Tensor:
            nonlocal weights
            outputs = forward()
            if weights is None:
                weights = torch.randn_like(outputs)
            return (outputs * weights).flatten(1).sum(1)

        with PerExampleClipper(layer, 0.5, engine=each, memory_mb=memory_mb) as clipper:
            norms = clipper.accumulate(losses, units)
        results.append((norms, [p.grad for p in layer.parameters()]))
    (norms, sums), (true_norms, true_sums) = results
    assert torch.allclose(norms, true_norms, rtol=1e-10)
    assert true_norms.max() > 0.5, "the test must clip something"
    for got, expected in zip(sums, true_sums, strict=True):
        assert (got is None) == (expected is None)
        assert got is None or torch.allclose(got, expected, rtol=1e-10, atol=1e-12)


def assert_forward_and_input_gradient_are_the_layers_own(layer: nn.Module, inputs: Tensor) -> None:
    """Compares output and input gradient inside a clipper with those outside."""
    leaf = inputs.clone().requires_grad_()
    expected = layer(leaf)
    (expected_gradient,) = torch.autograd.grad(expected.square().sum(), leaf)
    outputs = []

    def losses() -> Tensor:
        outputs.append(layer(leaf))
        return outputs[-1].square().flatten(1).sum(1)

    with PerExampleClipper(layer, 0.5) as clipper:
        clipper.accumulate(losses)
    whole = [each for each in outputs if len(each) == len(expected)]
    assert len(whole) > 1 and all(torch.allclose(each, expected, rtol=1e-10) for each in whole)
    assert torch.allclose(leaf.grad, expected_gradient, rtol=1e-10)
