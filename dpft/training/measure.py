"""What a step costs on this machine, from one synthetic micro-batch."""

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpft.data.layout import Layout
from dpft.head_losses import losses_added_up
from dpft.privacy.clipping.options import ClippingOptions
from dpft.privacy.noise import add_noise
from dpft.privacy.randomness import make_randomness
from dpft.training.precision import autocast
from dpft.training.self_check import CAUSAL_TEXT, synthetic_losses


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Time of training on records of a typical length, and memory of the longest."""

    seconds_per_step: float
    seconds_total: float
    peak_memory_bytes: int
    """Of the process so far, or of the accelerator."""
    typical_length: int
    """Tokens that a record is taken to have."""


def measure_step(
    model: nn.Module,
    *,
    max_length: int,
    typical_length: int,
    micro_batch_size: int,
    expected_batch_size: int,
    steps: int,
    options: ClippingOptions | None,
    layout: Layout = CAUSAL_TEXT,
    precision: str = "fp32",
) -> Measurement:
    """Times a micro-batch of records of a typical length, and the noise of a step.

    One of the longest records comes first, for the memory that it takes; what a clipper proves on
    its first micro-batches is in neither.

    Args:
        model: Prepared for training, on its device.
        max_length: Tokens of the longest record.
        typical_length: Tokens of the records that are timed.
        micro_batch_size: As in training.
        expected_batch_size: As in training; a step is this many records in micro-batches.
        steps: Steps planned.
        options: What training clips with; None measures ordinary gradients.
        layout: How rows lie in a batch.
        precision: As in training.
    """
    size = min(micro_batch_size, expected_batch_size)
    device = next(model.parameters()).device

    def losses_of(length: int) -> Callable[[], Tensor]:
        synthetic = synthetic_losses(model, size, length, layout=layout, ragged=False)

        def compute_losses() -> Tensor:
            with autocast(precision, device):
                return synthetic()

        return compute_losses

    model.train()
    longest, typical = losses_of(max_length), losses_of(typical_length)
    if options is None:
        with losses_added_up():
            torch.autograd.backward(longest().sum())
            per_batch = _timed(lambda: torch.autograd.backward(typical().sum()))
        noise = 0.0
    else:
        with options.make(model) as clipper:
            clipper.accumulate(longest)
            per_batch = _timed(lambda: clipper.accumulate(typical))
        noise = _timed(lambda: _add_noise(model))
    per_step = per_batch * expected_batch_size / size + noise
    return Measurement(
        seconds_per_step=per_step,
        seconds_total=per_step * steps,
        peak_memory_bytes=peak_memory(device),
        typical_length=typical_length,
    )


def _timed(work: Callable[[], object]) -> float:
    """Returns the seconds of the second of two runs; the first one warms up."""
    work()
    _wait()
    start = time.monotonic()
    work()
    _wait()
    return time.monotonic() - start


def _add_noise(model: nn.Module) -> None:
    parameters = [p for p in model.parameters() if p.requires_grad]
    add_noise(parameters, 1.0, make_randomness(parameters[0].device).noise)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_memory(device: torch.device) -> int:
    """Returns the most bytes that the accelerator, or else this process, has had so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
