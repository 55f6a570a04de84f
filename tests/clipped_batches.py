"""Clipped sums of dpft's own batches and losses, after a self-check on synthetic records."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dpft.data.batches import Batch, Layout
from dpft.models.losses import per_example_losses
from dpft.privacy.clipping import PerExampleClipper
from dpft.training.synthetic_batches import CAUSAL_TEXT, self_check_batches
from tests.privacy.clipping.oracle import Clipped, gradients_of

MAX_LENGTH = 12


@contextmanager
def checked_clipper(
    model: nn.Module,
    max_grad_norm: float,
    *,
    layout: Layout = CAUSAL_TEXT,
    has_units: bool = False,
    **options: Any,
) -> Iterator[PerExampleClipper]:
    """Enter a clipper of ``per_example_losses`` that has passed its self-check.

    Args:
        model: The model.
        max_grad_norm: C.
        layout: The layout of the batches.
        has_units: Whether a privacy unit can have several records.
        options: Other arguments of the clipper.
    """
    checks = self_check_batches(model, max_length=MAX_LENGTH, layout=layout, has_units=has_units)
    with PerExampleClipper(model, per_example_losses, max_grad_norm, **options) as clipper:
        clipper.self_check(*checks.batches, alone=checks.alone, rows_per_unit=checks.rows_per_unit)
        yield clipper


def clipped_batches(
    model: nn.Module,
    batches: Iterable[Batch],
    max_grad_norm: float,
    *,
    seed: int | None = None,
    **options: Any,
) -> Clipped:
    """Return the clipped sum of some micro-batches.

    Args:
        model: The model.
        batches: The micro-batches.
        max_grad_norm: C.
        seed: Seed that is set before each micro-batch.
        options: Other arguments of ``checked_clipper``.
    """
    model.zero_grad()
    norms = [torch.empty(0)]
    with checked_clipper(model, max_grad_norm, **options) as clipper:
        for batch in batches:
            if seed is not None:
                torch.manual_seed(seed)
            norms.append(clipper.accumulate(batch, batch.rows_per_unit))
        return Clipped(torch.cat(norms), gradients_of(model), clipper.choice, clipper.non_finite)
