"""For all inputs of a linear model: one example changes the clipped sum by at most C."""

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from dpft.privacy.clipping import PerExampleClipper

WIDTH = 3
C = 0.5
numbers = st.floats(-1e4, 1e4, width=32)
examples = st.lists(numbers, min_size=WIDTH, max_size=WIDTH)


def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Per-example losses, shape (b,)."""
    return F.softplus(model(batch["x"])).sum(1)


@pytest.fixture(scope="module")
def clipped_sum() -> Iterator[Callable[[list[list[float]]], Tensor]]:
    """Return the clipped sum of some examples, as one vector."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, 1))
    with PerExampleClipper(model, losses, max_grad_norm=C) as clipper:
        clipper.self_check({"x": torch.randn(4, WIDTH)})

        def compute(rows: list[list[float]]) -> Tensor:
            model.zero_grad()
            clipper.accumulate({"x": torch.tensor(rows)})
            return torch.cat([p.grad.flatten().double() for p in model.parameters()])

        yield compute


@given(others=st.lists(examples, min_size=1, max_size=4), example=examples)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_an_example_changes_the_sum_by_at_most_the_clipping_norm(
    clipped_sum: Callable[[list[list[float]]], Tensor],
    others: list[list[float]],
    example: list[float],
) -> None:
    change = clipped_sum([*others, example]) - clipped_sum(others)
    # Both sums are rounded to float32.
    assert change.norm() <= C * (1 + 1e-5)
