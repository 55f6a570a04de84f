"""The clipper's self-check on synthetic records: random contents, ragged lengths, random labels."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpft.data.batches import Layout
from dpft.errors import RunError
from dpft.models.losses import per_example_losses
from dpft.privacy.clipping.clipper import ClippingOptions, self_check
from dpft.training.synthetic_batches import CAUSAL_TEXT, SHORT_LENGTH, synthetic_batch
from dpft.training.training_config import autocast

BATCH_SIZES = (3, 2)
"""Examples in the short batch and in the one of the longest records."""
HALF_TOLERANCE = 5e-2
"""Most that engine and loop may differ in half precision: the loop rounds each weight gradient to
it, the engines sum in float32. A rule that misses a term is off by far more."""
INDEPENDENCE_TOLERANCE = 1e-4
"""Most that padding and neighbors may move a loss, relative, by float32 rounding."""


def check_clipper(
    model: nn.Module,
    options: ClippingOptions,
    *,
    max_length: int,
    layout: Layout = CAUSAL_TEXT,
    precision: str = "fp32",
    has_units: bool = False,
) -> float:
    """Runs the clipper's self-check in training mode; returns the largest difference in float32.

    Args:
        model: The model, on its device, every parameter that will be trained trainable.
        options: What training will clip with.
        max_length: Length of the longest synthetic records.
        layout: How rows lie in a batch.
        precision: Where it is not fp32, the check is made in it as well, to its own rounding.
        has_units: Whether a privacy unit may have several records; then it has some here.

    Raises:
        RunError: The engine disagrees with the loop.
    """
    was_training = model.training
    lengths = zip(BATCH_SIZES, (min(SHORT_LENGTH, max_length), max_length), strict=True)
    sizes = [(count, longest) for count, longest in lengths]
    for count, longest in sizes:
        rows = layout.synthetic(model, count, longest)
        check_independence(model.eval(), rows, layout)
    model.train()
    batches: list[Callable[[], Tensor]] = [
        partial(per_example_losses, model, synthetic_batch(model, *size, layout=layout))
        for size in sizes
    ]
    device = next(model.parameters()).device
    units = [(torch.arange(count) // 2).to(device) if has_units else None for count in BATCH_SIZES]
    plain = replace(options, loss_scale=1.0)
    difference = self_check(model, batches, plain, units=units)
    if precision != "fp32":
        halved = [_in_precision(precision, model, batch) for batch in batches[:1]]
        self_check(model, halved, options, tolerance=HALF_TOLERANCE, units=units)
    model.train(was_training)
    return difference


def _in_precision(
    precision: str, model: nn.Module, compute_losses: Callable[[], Tensor]
) -> Callable[[], Tensor]:
    """Returns what computes the same losses under autocast."""

    def compute() -> Tensor:
        with autocast(precision, next(model.parameters()).device):
            return compute_losses()

    return compute


@torch.no_grad()
def check_independence(model: nn.Module, rows: Sequence[Any], layout: Layout) -> None:
    """Compares each example's loss among others and padded with its loss alone.

    The clipper bounds an example's gradient; only this sees an example that changes the others'.

    Raises:
        RunError: They differ, so examples are not independent of each other.
    """
    device, bare = next(model.parameters()).device, layout.unpadded()
    together = per_example_losses(model, layout.collate(rows).to(device))
    for row, loss in zip(rows, together, strict=True):
        alone = per_example_losses(model, bare.collate([row]).to(device))[0]
        if not torch.isclose(loss, alone, rtol=INDEPENDENCE_TOLERANCE, atol=1e-6):
            raise RunError(
                "self-check failed: an example's loss depends on the other examples of its batch "
                f"or on padding ({float(loss):.6f} among others, {float(alone):.6f} alone), so "
                "clipping would bound nothing; choose another model."
            )
