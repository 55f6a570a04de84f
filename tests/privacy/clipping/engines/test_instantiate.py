"""Per-example gradients in the one backward pass, and nothing else held."""

import torch
from torch import nn

from dpft.privacy.clipping.engines.instantiate import InstantiateEngine
from dpft.privacy.clipping.factors import clipping_style
from tests.privacy.clipping.oracle import gpt2, records

STYLE = clipping_style("flat", max_grad_norm=1.0)


def test_gradients_are_clipped_by_hand_arithmetic():
    model = nn.Linear(2, 1, bias=False)
    engine = InstantiateEngine(model, STYLE)
    engine.install()
    clipped = engine.accumulate(model(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))[:, 0], None)
    # Norms 5 and 0.5; the first is scaled to (0.6, 0.8), the second stays.
    assert torch.allclose(clipped.norms, torch.tensor([5.0, 0.5]))
    assert torch.allclose(model.weight.grad, torch.tensor([[0.9, 1.2]]), rtol=1e-5)


def test_uses_of_one_weight_add_up_before_the_norm():
    layer = nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(2.0)
    engine = InstantiateEngine(layer, STYLE)
    engine.install()
    clipped = engine.accumulate(layer(layer(torch.ones(1, 1)))[:, 0], None)
    # The derivative of w * w at 2.
    assert clipped.norms.tolist() == [4.0]


def test_no_use_is_kept_even_of_a_tied_weight():
    model, batch = gpt2(tied=True), records()
    engine = InstantiateEngine(model, STYLE)
    engine.install()
    kept = []
    engine.recorder.keep = lambda name, use: kept.append(name)
    engine.accumulate(batch.losses(model)(), None)
    assert kept == [] and model.transformer.wte.weight.grad is not None
