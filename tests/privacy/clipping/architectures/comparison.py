"""The clipper against the loop, and against examples run one at a time without padding."""

import torch
from torch import nn

from tests.privacy.clipping.architectures.batches import Examples, Kind
from tests.privacy.clipping.oracle import Clipped, clipped_sum, total_norm

NORM = 0.5


def clipped(
    model: nn.Module, kind: Kind, batch: Examples, *, engine: str = "book_keeping", **options
) -> Clipped:
    """The clipped sum of a batch, dropout masks those of seed 3."""
    torch.manual_seed(3)
    return clipped_sum(model, lambda: kind(model, batch), NORM, engine=engine, **options)


def one_at_a_time(model: nn.Module, kind: Kind, batch: Examples) -> Clipped:
    """The definition: a forward and a backward pass per example, alone in its batch, unpadded."""
    parts = [clipped(model, kind, batch.alone(row), engine="loop") for row in range(len(batch))]
    total = {n: sum(part.gradients[n] for part in parts) for n in parts[0].gradients}
    return Clipped(torch.cat([part.norms for part in parts]), total)


def difference(got: Clipped, expected: Clipped) -> float:
    """The larger of the relative differences of norms and of sums."""
    norms = ((got.norms - expected.norms).abs() / expected.norms.clamp(min=1e-12)).max()
    scale = total_norm(expected.gradients).clamp(min=1e-30)
    return max(float(norms), float(got.minus(expected) / scale))
