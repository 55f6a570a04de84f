"""How fast this machine is at what a training step is made of, by a probe of about half a second.

It multiplies matrices as wide as the model, takes a function of many numbers one by one, draws
noise, and takes a clipped gradient of layers that are too narrow to cost anything but their calls.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from dpft.privacy.clipping.options import ClippingOptions
from dpft.privacy.noise import add_noise
from dpft.privacy.randomness import make_randomness
from dpft.training.precision import autocast

SECONDS = 0.1
"""Of each of the four parts, at least one repetition."""
LAYERS = 8
"""Of the narrow stack, each a dense layer and a norm."""
MOST_TOKENS = 2048
"""Rows of the probe's matrix: beyond them the rate no longer rises."""
MOST_WIDTH = 4096
NUMBERS = 2**22
"""That a function is taken of: more than a processor's nearer caches hold."""
NOISE_NUMBERS = 2**18


@dataclass(frozen=True, kw_only=True)
class MachineSpeed:
    """What the probe found."""

    operations_per_second: float
    """Multiplications and additions of a product of matrices."""
    values_per_second: float
    """Of a function of single numbers, such as an activation's."""
    noise_per_second: float
    """Numbers that get noise; infinite where none is added."""
    seconds_per_layer: float
    """Calls of one layer with parameters, forward, backward and clipped, whatever its size."""


def probe_machine(
    device: torch.device,
    *,
    width: int,
    tokens: int,
    options: ClippingOptions | None,
    precision: str = "fp32",
) -> MachineSpeed:
    """Returns how fast the machine is now, with all else that it is doing.

    Args:
        device: What training runs on.
        width: Of the model's layers.
        tokens: In a micro-batch.
        options: What training clips with; None probes ordinary gradients, without noise.
        precision: As in training.
    """
    rows, inner = min(tokens, MOST_TOKENS), min(width, MOST_WIDTH)
    left = torch.randn(rows, inner, device=device)
    right = torch.randn(inner, 4 * inner, device=device)

    def multiply() -> None:
        with autocast(precision, device):
            torch.matmul(left, right)

    numbers = torch.randn(NUMBERS, device=device)
    return MachineSpeed(
        operations_per_second=8 * rows * inner**2 / _seconds_of(multiply),
        values_per_second=NUMBERS / _seconds_of(lambda: nn.functional.gelu(numbers)),
        noise_per_second=float("inf") if options is None else _noise_rate(device),
        seconds_per_layer=_seconds_per_layer(device, options),
    )


def _noise_rate(device: torch.device) -> float:
    parameter = nn.Parameter(torch.zeros(NOISE_NUMBERS, device=device))
    parameter.grad = torch.zeros_like(parameter)
    noise = make_randomness(device).noise
    return parameter.numel() / _seconds_of(lambda: add_noise([parameter], 1.0, noise))


def _seconds_per_layer(device: torch.device, options: ClippingOptions | None) -> float:
    """Returns the seconds of a layer's calls, from a stack of narrow ones."""
    layers = [module for _ in range(LAYERS) for module in (nn.Linear(8, 8), nn.LayerNorm(8))]
    stack = nn.Sequential(*layers).to(device)
    given = torch.randn(4, 8, 8, device=device)

    def losses() -> torch.Tensor:
        sums: torch.Tensor = stack(given).sum(dim=(1, 2))
        return sums

    if options is None:
        return _seconds_of(lambda: losses().sum().backward()) / len(layers)
    # Patterns of groups are of the model's own names.
    with replace(options, groups=None).resolved(stack).make(stack) as clipper:
        return _seconds_of(lambda: clipper.accumulate(losses)) / len(layers)


def _seconds_of(work: Callable[[], object]) -> float:
    """Returns the mean seconds of some runs, after a first that warms up."""
    work()
    began, runs = time.monotonic(), 0
    while True:
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        runs += 1
        elapsed = time.monotonic() - began
        if elapsed > SECONDS:
            return elapsed / runs
