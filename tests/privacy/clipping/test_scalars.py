"""Parameters without dimensions: a learned temperature, a gate that starts near zero, a norm."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.clipping.algorithms import ENGINES
from tests.slowness import slow_but

X = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Temperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.log = nn.Linear(3, 3), nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        return self.dense(x) * self.log.exp()


class Gated(nn.Module):
    """ReZero's way; one that reads a value cannot be mapped, and runs in a loop."""

    def __init__(self, *, reads: bool = False):
        super().__init__()
        self.dense, self.gate = nn.Linear(3, 3), nn.Parameter(torch.tensor(0.1))
        self.reads = reads

    def forward(self, x):
        if self.reads and float(x.detach().sum()) < -1e9:
            return x
        return x + self.gate * self.dense(x).tanh()


class Twice(nn.Module):
    """Two gates that are one parameter."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Gated(), Gated()
        self.second.gate = self.first.gate

    def forward(self, x):
        return self.second(self.first(x))


KINDS = {
    "temperature": Temperature,
    "gate": Gated,
    "gate in a loop": lambda: Gated(reads=True),
    "one gate for two": Twice,
    "weight norm": lambda: weight_norm(nn.Linear(3, 3), dim=None),
}


def norms_and_sums(make, engine, units):
    torch.manual_seed(0)
    model = make().double()
    with PerExampleClipper(model, 0.5, engine=engine, clipping="per_layer") as clipper:
        norms = [clipper.accumulate(lambda: model(X).square().sum((1, 2)), units) for _ in range(2)]
    assert any(p.dim() == 0 for p in model.parameters())
    return torch.cat([*norms, *(p.grad.flatten() for p in model.parameters())])


@pytest.mark.parametrize("labels", slow_but([[2, 1, 2, 2]], [None, [2, 1, 2, 2]]), ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_number_that_trains_is_exact_in_every_engine(kind, labels):
    units = None if labels is None else torch.tensor(labels)
    expected = norms_and_sums(KINDS[kind], "loop", units)
    for engine in [engine for engine in ENGINES if engine != "loop"]:
        got = norms_and_sums(KINDS[kind], engine, units)
        assert torch.allclose(got, expected, rtol=1e-10), engine
