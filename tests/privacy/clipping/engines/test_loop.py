import torch
from torch import nn

from dpft.privacy.clipping.engines.loop import LoopEngine
from dpft.privacy.clipping.factors import clipping_style


def test_gradients_are_taken_one_at_a_time_and_clipped_by_hand_arithmetic():
    model = nn.Linear(2, 1, bias=False)
    inputs = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    engine = LoopEngine(model, clipping_style("flat", max_grad_norm=1.0))
    clipped = engine.accumulate(model(inputs)[:, 0], None)
    # Norms 5 and 0.5; the first is scaled to (0.6, 0.8), the second stays.
    assert torch.allclose(clipped.norms, torch.tensor([5.0, 0.5]))
    assert torch.allclose(model.weight.grad, torch.tensor([[0.9, 1.2]]), rtol=1e-5)


def test_a_parameter_without_a_use_is_left_without_a_gradient():
    model = nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1)})
    engine = LoopEngine(model, clipping_style("flat", max_grad_norm=1.0))
    engine.accumulate(model["used"](torch.ones(2, 2))[:, 0], None)
    assert model["unused"].weight.grad is None
