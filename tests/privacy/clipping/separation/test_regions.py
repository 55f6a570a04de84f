"""Layers without a rule and uses without the batch dimension: exact, or refused by name."""

import logging

import pytest
import torch
from torch import nn

from dpft.errors import InputError
from dpft.privacy.clipping import PerExampleClipper
from tests.privacy.clipping.rules.oracle import assert_equals_the_loop

INPUTS = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
IMAGES = torch.randn(4, 6, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class PlusOneNorm(nn.Module):
    """Gemma's: the weight is added to one."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((6,), 0.1))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Scaled(nn.Embedding):
    def forward(self, ids):
        return super().forward(ids) * 3


class ReadsAValue(nn.Linear):
    """What ``vmap`` cannot run."""

    def forward(self, x):
        return super().forward(x) if float(x.detach().sum()) > 0 else -super().forward(x)


class OnePosition(nn.Module):
    """BERT's way: positions of shape (1, t), added to all examples."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Embedding(4, 6)
        self.dense = nn.Linear(6, 6)

    def forward(self, x):
        return self.dense(x + self.positions(torch.arange(x.shape[1])[None]))


class RelativeBias(nn.Module):
    """T5's way: a (t, t) look-up, which at b = t looks like one that carries the batch."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Embedding(4, 1)

    def forward(self, x):
        steps = torch.arange(x.shape[1])
        bias = self.bias((steps[:, None] - steps[None]).abs()).squeeze(-1)
        return 20 * (x @ x.mT + bias).softmax(-1) @ x


class BehindItsBack(nn.Module):
    """DeBERTa's way: an embedding whose weight is used without calling it."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 6)
        self.dense = nn.Linear(6, 6)

    def forward(self, x):
        return self.dense(x) * self.dense(self.table.weight)


class ClassToken(nn.Module):
    """ViT's way."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.ones(1, 1, 6))
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        return self.norm(torch.cat([self.token.expand(len(x), -1, -1), x], 1)).cumsum(1)


LAYERS = {
    "PReLU": (nn.PReLU, INPUTS),
    "RMSNorm": (lambda: nn.RMSNorm(6), INPUTS),
    "plus-one norm": (PlusOneNorm, INPUTS),
    "GroupNorm": (lambda: nn.GroupNorm(2, 6), IMAGES),
    "GroupNorm of no image": (lambda: nn.GroupNorm(2, 6), INPUTS[:, 0]),
    "Linear subclass": (lambda: Doubled(6, 3), INPUTS),
    "Embedding subclass": (lambda: Scaled(9, 6), torch.tensor([[1, 2, 1], [0, 0, 0]])),
    "Bilinear": (lambda: Twice(), INPUTS),
    "LSTM": (lambda: First(nn.LSTM(6, 3, batch_first=True)), INPUTS),
    "one position for all": (OnePosition, INPUTS[:, :4]),
    "relative bias, b = t": (RelativeBias, INPUTS[:, :4]),
    "a weight behind its layer's back": (BehindItsBack, INPUTS),
    "class token": (ClassToken, INPUTS),
    "multi-head attention": (lambda: SelfAttention(), INPUTS),
}


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.product = nn.Bilinear(6, 6, 2)

    def forward(self, x):
        return self.product(x, x.tanh())


class First(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize(("make", "inputs"), LAYERS.values(), ids=LAYERS)
def test_norms_and_sums_equal_the_loop(make, inputs):
    torch.manual_seed(0)
    layer = make().double()
    assert_equals_the_loop(layer, lambda: layer(inputs))


def test_what_cannot_be_mapped_runs_one_example_after_another_and_is_logged_once(caplog):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = ReadsAValue(6, 3)

        def forward(self, x):
            return self.inner(x)

    caplog.set_level(logging.INFO, logger="dpft")
    layer, inputs = Holder().double(), INPUTS.abs()
    for _ in range(2):
        assert_equals_the_loop(layer, lambda: layer(inputs))
    lines = [r.message for r in caplog.records if "one example after another" in r.message]
    assert len(lines) == 1 and lines[0].startswith("clipping: ReadsAValue runs")


def test_what_was_learned_from_one_example_is_learned_anew_from_several():
    layer = OnePosition().double()
    sums = []
    for engine in ("book_keeping", "loop"):
        layer.zero_grad()
        with PerExampleClipper(layer, 0.5, engine=engine) as clipper:
            for rows in (INPUTS[:1, :4], INPUTS[1:, :4]):
                clipper.accumulate(lambda rows=rows: layer(rows).square().sum((1, 2)))
        sums.append([p.grad for p in layer.parameters()])
    for got, expected in zip(*sums, strict=True):
        assert torch.allclose(got, expected, rtol=1e-10)


class Turned(nn.Module):
    """Gives out the batch in another place."""

    def __init__(self, place):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5, 1))
        self.place = place

    def forward(self, x):
        return (x.mT.contiguous() * self.scale.T[0, 0]).movedim(0, self.place)


def test_the_batch_in_third_place_is_refused_by_name():
    layer = Turned(2).double()
    with (
        PerExampleClipper(layer, 0.5) as clipper,
        pytest.raises(InputError, match="parameter scale is used without the batch dimension"),
    ):
        clipper.accumulate(lambda: layer(INPUTS).movedim(2, 0).sum((1, 2)))


@pytest.mark.parametrize("kind", [nn.Linear, ReadsAValue])
def test_the_batch_in_second_place_is_followed_through_a_module(kind, caplog):
    class TimeMajor(nn.Module):
        def __init__(self):
            super().__init__()
            self.turned = Turned(1)
            self.layer = nn.TransformerEncoderLayer(5, 1, 7, 0.0, activation=torch.exp)
            self.last = kind(5, 3)

        def forward(self, x):
            return self.last(self.layer(self.turned(x)).exp()).transpose(0, 1)

    layer = TimeMajor().double()
    caplog.set_level(logging.INFO, logger="dpft")
    assert_equals_the_loop(layer, lambda: layer(INPUTS))
    assert "TimeMajor" not in caplog.text


def test_a_layer_run_twice_in_a_region_adds_up_before_the_norm():
    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.RMSNorm(6)
            self.dense = nn.Linear(6, 6)

        def forward(self, x):
            return self.norm(self.dense(self.norm(self.dense(x))))

    layer = Again().double()
    assert_equals_the_loop(layer, lambda: layer(INPUTS))
