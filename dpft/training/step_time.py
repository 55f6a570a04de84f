"""The duration of a training step, measured on synthetic micro-batches.

A step consists of the passes over its micro-batches, the noise, and the optimizer's update.
Loading, encoding, evaluation, checkpoints and communication between processes are not measured.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from dpft.data.batches import Batch, Layout
from dpft.models.losses import per_example_losses
from dpft.privacy.clipping.clipper import CHECKED_MICRO_BATCHES, ClippingOptions
from dpft.privacy.noise import add_noise
from dpft.privacy.phased_clipper import PhasedClipper
from dpft.privacy.plan import ClippingPlan
from dpft.privacy.randomness import make_randomness
from dpft.strict_model import AtLeastOne, NotNegative, StrictModel
from dpft.training.optimizers import OptimizerConfig
from dpft.training.synthetic_batches import (
    CAUSAL_TEXT,
    self_check_batches,
    synthetic_batch,
)
from dpft.training.training_config import autocast, autocast_dtype


class MeasuredTime(StrictModel):
    """Duration of the steps on this machine, measured on synthetic micro-batches in one process."""

    seconds_per_step: NotNegative
    """Duration of a step in seconds."""
    seconds_total: NotNegative
    """Duration of all steps in seconds."""
    timed_micro_batch: AtLeastOne
    """Number of examples in the timed micro-batch."""
    tokens_per_example: AtLeastOne
    """Number of tokens of each example."""


SECONDS = 4.0
"""Maximum duration of a timed micro-batch in seconds. If the micro-batches of the run take longer,
their duration is extrapolated from the first and the last timed one."""


def measure_step(
    model: nn.Module,
    *,
    length: int,
    micro_batch_size: int,
    expected_batch_size: int,
    steps: int,
    clipped: tuple[ClippingPlan, ClippingOptions] | None,
    optimizer: OptimizerConfig,
    layout: Layout = CAUSAL_TEXT,
    precision: str = "fp32",
) -> MeasuredTime:
    """Measure the duration of a step and multiply it by the number of steps.

    The first micro-batches, on which the clipper runs checks, are not timed. Each timed micro-batch
    has twice as many examples as the previous one, up to ``micro_batch_size`` or ``SECONDS``.

    Args:
        model: Model that is prepared for training, on its device. Its weights change.
        length: Number of tokens of each example.
        micro_batch_size: Maximum number of examples in a micro-batch.
        expected_batch_size: Number of examples in a step.
        steps: Number of steps.
        clipped: The plan, which provides the clipping norm of its first phase, and the clipping
            options. None for ordinary gradients without noise.
        optimizer: The optimizer of the run.
        layout: Layout of the rows in a batch.
        precision: Precision as in training.
    """
    size = min(micro_batch_size, expected_batch_size)
    device = next(model.parameters()).device
    model.train()

    def batch_of(rows: int) -> Batch:
        return synthetic_batch(model, rows, length, layout=layout, ragged=False)

    def add_gradient(batch: Batch) -> None:
        with autocast(precision, device):
            losses = per_example_losses(model, batch)
        losses.sum().backward()

    def micro_batch(accumulate: Callable[[Batch], object]) -> tuple[int, float]:
        """Return the rows of the largest timed micro-batch, and the seconds of a full one."""
        accumulate(batch_of(1))
        rows, seconds = 1, _timed(partial(accumulate, batch_of(1)))
        first, per_example = seconds, seconds
        while rows < size and 2 * seconds <= SECONDS:
            rows = min(size, 2 * rows)
            seconds = _timed(partial(accumulate, batch_of(rows)))
            per_example = max(0.0, seconds - first) / (rows - 1)
        return rows, seconds + (size - rows) * per_example

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    moves = optimizer.make(trained, 1e-6, 0.0)
    if clipped is None:
        rows, per_batch = micro_batch(add_gradient)
        update = _timed(moves.step)
    else:
        plan, options = clipped
        options = replace(options, autocast=autocast_dtype(precision))
        with PhasedClipper(model, per_example_losses, plan, step=0, options=options) as clipper:
            check = self_check_batches(model, max_length=length, layout=layout)
            clipper.self_check(*check.batches, rows_per_unit=check.rows_per_unit)

            def add_clipped(batch: Batch) -> None:
                clipper.accumulate(batch, batch.rows_per_unit)

            for _ in range(CHECKED_MICRO_BATCHES):  # These are not timed.
                add_clipped(batch_of(min(2, size)))
            rows, per_batch = micro_batch(add_clipped)
        noise = make_randomness(device).noise

        def noisy_update() -> None:
            add_noise(trained, 1.0, noise)
            moves.step()

        update = _timed(noisy_update)
    per_step = per_batch * expected_batch_size / size + update
    return MeasuredTime(
        seconds_per_step=per_step,
        seconds_total=per_step * steps,
        timed_micro_batch=rows,
        tokens_per_example=length,
    )


def _timed(work: Callable[[], object]) -> float:
    """Return the seconds of the second of two calls; the first call warms up."""
    work()
    _wait()
    start = time.monotonic()
    work()
    _wait()
    return time.monotonic() - start


def _wait() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
