"""The comparison with single-example execution notices every kind of wrong sum."""

import pytest
import torch

from tests.privacy.clipping.oracle import Clipped, UnitGradients, distance

NORM = 1.0
UNITS = UnitGradients(
    [
        {"weight": torch.tensor([3.0, 0.0, 4.0]).double(), "bias": torch.tensor([0.0]).double()},
        {"weight": torch.tensor([0.0, 0.1, 0.0]).double(), "bias": torch.tensor([0.2]).double()},
    ],
    torch.zeros(2),
)


def sum_of(factors: tuple[float, float]) -> Clipped:
    total = {
        name: sum(f * g[name] for f, g in zip(factors, UNITS.gradients, strict=True))
        for name in ("weight", "bias")
    }
    return Clipped(UNITS.norms.float(), total)


@pytest.mark.parametrize("shortened", [1.0, 0.999])
def test_the_sum_by_definition_passes_and_so_does_a_slightly_shorter_one(shortened):
    assert distance(sum_of((0.2 * shortened, 1.0)), UNITS, NORM) <= 1e-6


@pytest.mark.parametrize(
    "factors", [(0.2, 1.001), (0.2002, 1.0), (0.19, 1.0), (1.0, 1.0), (0.2, 0)]
)
def test_other_factors_do_not_pass(factors):
    assert distance(sum_of(factors), UNITS, NORM) > 1e-4


def test_a_wrong_direction_or_norm_does_not_pass():
    got = sum_of((0.2, 1.0))
    got.gradients["bias"] += 1e-4
    assert distance(got, UNITS, NORM) > 5e-5
    norms = torch.tensor([5.0, 0.2237])
    assert distance(Clipped(norms, sum_of((0.2, 1.0)).gradients), UNITS, NORM) > 1e-4
