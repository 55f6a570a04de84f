"""torch.compile around a model: every engine gives the same sum, and proves it once."""

import pytest
import torch

from dpft.privacy.clipping import PerExampleClipper
from tests.privacy.clipping.oracle import Clipped, gpt2, records

NORM = 0.5


ENGINES = ("book_keeping", "instantiate")
"""Run by make test-full; they compile like the other one."""


@pytest.mark.parametrize(
    "engine",
    ["two_pass", *(pytest.param(name, marks=pytest.mark.slow) for name in ENGINES)],
)
def test_a_compiled_model_gives_the_loops_sum(engine):
    batch, model = records(), gpt2(dtype=torch.float64)
    with PerExampleClipper(model, NORM, engine="loop") as clipper:
        norms = clipper.accumulate(batch.losses(model))
    expected = Clipped(norms, {n: p.grad.clone() for n, p in model.named_parameters()})
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager")
    with PerExampleClipper(compiled, NORM, engine=engine) as clipper:
        for _ in range(2):
            model.zero_grad()
            norms = clipper.accumulate(batch.losses(compiled))
            got = Clipped(norms, {n: p.grad for n, p in model.named_parameters()})
            assert torch.allclose(got.norms, expected.norms, rtol=1e-10)
            assert got.distance(expected) <= 1e-10
    assert not any("forward" in vars(module) for module in model.modules())
