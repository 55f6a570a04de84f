"""A weight for each example, without a copy, whose gradients are reported."""

import torch
from torch import nn

from dpft.privacy.clipping.rules.expansion import expanded


def test_each_rows_gradient_is_reported_and_none_is_formed():
    weight = nn.Parameter(torch.tensor([2.0, 3.0]))
    met = []
    rows = expanded(weight, 3, met.append)
    assert torch.equal(rows, weight.detach().repeat(3, 1)) and rows.stride(0) == 0
    inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    (rows.square() * inputs).sum().backward()
    (use,) = met
    assert use.values.tolist() == [[4.0, 0.0], [0.0, 6.0], [4.0, 6.0]]
    assert weight.grad is None


def test_a_frozen_weight_is_expanded_and_reports_nothing():
    weight = nn.Parameter(torch.ones(2), requires_grad=False)
    rows = expanded(weight, 3, lambda use: 1 / 0)
    assert rows.shape == (3, 2) and not rows.requires_grad
