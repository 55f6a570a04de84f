"""torch.compile around a model: every engine gives the same sum, and proves it once."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dpft.privacy.clipping import PerExampleClipper
from tests.privacy.clipping.oracle import Clipped, gpt2, records
from tests.slowness import slow_but

NORM = 0.5
ENGINES = ("two_pass", "book_keeping", "instantiate")


def assert_the_loops_sum(
    model: nn.Module, losses: Callable[[nn.Module], Callable[[], Tensor]], engine: str
) -> None:
    with PerExampleClipper(model, NORM, engine="loop") as clipper:
        norms = clipper.accumulate(losses(model))
    expected = Clipped(norms, {n: p.grad.clone() for n, p in model.named_parameters()})
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager")
    with PerExampleClipper(compiled, NORM, engine=engine) as clipper:
        for _ in range(2):
            model.zero_grad()
            norms = clipper.accumulate(losses(compiled))
            got = Clipped(norms, {n: p.grad for n, p in model.named_parameters()})
            assert torch.allclose(got.norms, expected.norms, rtol=1e-10)
            assert got.distance(expected) <= 1e-10
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("engine", slow_but(("two_pass",), ENGINES))
def test_a_compiled_stack_of_layers_gives_the_loops_sum(engine: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    tokens = torch.randint(0, 20, (4, 5))
    assert_the_loops_sum(model.double(), lambda m: lambda: m(tokens).square().sum((1, 2)), engine)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_compiled_model_gives_the_loops_sum(engine: str) -> None:
    assert_the_loops_sum(gpt2(dtype=torch.float64), records().losses, engine)
