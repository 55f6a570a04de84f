"""Proof on the spot: the clipper against the one-at-a-time loop, on data that is not private."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dpft.errors import RunError
from dpft.privacy.clipping.clipper import PerExampleClipper

# Deep float32 networks differ by a few 1e-6 between two orders of summation; a wrong rule is off
# by percents.
LEAST_SHARE = 1e-2
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


def self_check(
    model: nn.Module,
    batches: Sequence[Callable[[], Tensor]],
    *,
    max_grad_norm: float,
    clipping: str,
    engine: str,
) -> float:
    """Compares norms and clipped sums of an engine with the loop's; gradients end as None.

    Args:
        model: The model to be trained, in its training mode; dropout masks are those of a forked
            random state, the same for both.
        batches: Each computes per-example losses, shape (b,), of one synthetic batch.
        max_grad_norm: As in training.
        clipping: As in training.
        engine: The engine to prove.

    Returns:
        The largest relative difference seen.

    Raises:
        RunError: They differ by more than rounding.
    """
    worst = 0.0
    for compute_losses in batches:
        results = []
        for name in (engine, "loop"):
            with torch.random.fork_rng():
                clipper = PerExampleClipper(model, max_grad_norm, clipping=clipping, engine=name)
                with clipper:
                    norms = clipper.accumulate(compute_losses)
            results.append((norms, _take_gradients(model)))
        worst = max(worst, _compare(*results))
    return worst


def _take_gradients(model: nn.Module) -> dict[str, Tensor]:
    """Returns the accumulated sums by parameter name, and clears them."""
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            gradients[name] = (
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            )
            parameter.grad = None
    return gradients


def _compare(
    got: tuple[Tensor, dict[str, Tensor]], expected: tuple[Tensor, dict[str, Tensor]]
) -> float:
    """Returns the relative difference of norms and sums.

    Raises:
        RunError: It is more than rounding; names the parameter that differs most.
    """
    norms, sums = got
    true_norms, true_sums = expected
    total = _norm(list(true_sums.values())).clamp(min=torch.finfo(torch.float32).tiny)
    # Each parameter by its own size, but not below a share of the whole: some gradients are zero
    # but for rounding (a key's bias in attention).
    apart = {
        name: float(_norm([sums[name] - true]) / _norm([true]).clamp(min=LEAST_SHARE * total))
        for name, true in true_sums.items()
    }
    worst_name = max(apart, key=lambda name: apart[name])
    in_norms = float(((norms - true_norms).abs() / true_norms.clamp(min=1e-12)).max())
    difference = max(in_norms, apart[worst_name])
    tolerance = TOLERANCE.get(true_sums[worst_name].dtype, 1e-4)
    if not difference <= tolerance:
        raise RunError(
            f"self-check failed: the clipper differs from the one-example-at-a-time loop by "
            f"{difference:.1e} (allowed {tolerance:.0e}), most in parameter {worst_name}; no "
            "private record was touched. Choose privacy.engine=loop and report this model."
        )
    return difference


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([tensor.square().sum() for tensor in tensors]).sum().sqrt()
