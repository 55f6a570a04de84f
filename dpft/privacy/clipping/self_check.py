"""Holds the clipper against the one-example-at-a-time loop, on data that is not private."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from dpft.errors import RunError
from dpft.privacy.clipping.options import ClippingOptions

# Deep float32 networks differ by a few 1e-6 between two orders of summation; a wrong rule is off
# by percents.
LEAST_SHARE = 1e-2
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


def self_check(
    model: nn.Module,
    batches: Sequence[Callable[[], Tensor]],
    options: ClippingOptions,
    *,
    tolerance: float | None = None,
    units: Sequence[Tensor | None] | None = None,
    oracles: Sequence[Callable[[], Tensor]] | None = None,
) -> float:
    """Compares norms and clipped sums of an engine with the loop's; gradients end as None.

    Args:
        model: The model to be trained, in its training mode; dropout masks are those of a forked
            random state, the same for both.
        batches: Each computes per-example losses, shape (b,), of one synthetic batch.
        options: As in training; its engine is the one to prove.
        tolerance: Largest relative difference allowed; None takes that of the dtype.
        units: Privacy unit of each row of each batch, shape (b,), as ``accumulate`` takes them;
            None: each row is one.
        oracles: The same losses, computed otherwise, for the loop; None: as ``batches`` does.

    Returns:
        The largest relative difference seen.

    Raises:
        RunError: They differ by more than rounding, or are not finite.
    """
    worst = 0.0
    proven = options.resolved(model)
    loop = replace(options, engine="loop")
    rows_of = units or [None] * len(batches)
    for compute_losses, oracle, rows in zip(batches, oracles or batches, rows_of, strict=False):
        got = _clipped(model, compute_losses, proven, rows)
        expected = _clipped(model, oracle, loop, rows)
        worst = max(worst, _compare(got, expected, tolerance))
    return worst


def _clipped(
    model: nn.Module,
    compute_losses: Callable[[], Tensor],
    options: ClippingOptions,
    units: Tensor | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns a batch's norms and clipped sums; random state stays, and no gradient is left.

    Raises:
        RunError: A gradient is not finite.
    """
    with torch.random.fork_rng(), options.make(model) as clipper:
        norms = clipper.accumulate(compute_losses, units)
        if clipper.non_finite:
            scale = options.loss_scale() if callable(options.loss_scale) else options.loss_scale
            raise RunError(
                "self-check failed: gradients of synthetic data are not finite at"
                f" `loss_scale={scale:g}`; no private record was touched. Lower it, or choose a"
                " model whose weights are finite."
            )
    return norms, _take_gradients(model, options)


def _take_gradients(model: nn.Module, options: ClippingOptions) -> dict[str, Tensor]:
    """Returns the accumulated sums by parameter name, and clears them."""
    gradients = {}
    wanted = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    now = dict(model.named_parameters()) if options.shards is None else options.shards.unsharded
    for name in wanted:
        parameter = now[name]
        gradients[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad = None
    return gradients


def _compare(
    got: tuple[Tensor, dict[str, Tensor]],
    expected: tuple[Tensor, dict[str, Tensor]],
    tolerance: float | None,
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
    allowed = TOLERANCE[true_sums[worst_name].dtype] if tolerance is None else tolerance
    if not difference <= allowed:
        raise RunError(
            f"self-check failed: the clipper differs from the one-example-at-a-time loop by "
            f"{difference:.1e} (allowed {allowed:.0e}), most in parameter {worst_name}; no "
            "private record was touched. Choose `engine='loop'` and report this model."
        )
    return difference


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([tensor.square().sum() for tensor in tensors]).sum().sqrt()
