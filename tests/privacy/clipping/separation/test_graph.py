"""What losses were computed by, and gradients taken beside the ones that are there."""

import pytest
import torch
from torch import nn

from dpft.errors import RunError
from dpft.privacy.clipping.separation.graph import (
    describe_graph,
    gradients_kept,
    ordinary_gradients,
    other_leaves,
)


def made():
    model = nn.Linear(3, 2)
    return model, dict(model.named_parameters())


def test_one_computation_has_one_digest_whatever_its_sizes_and_another_has_another():
    model, parameters = made()
    few, many = torch.ones(2, 3), torch.zeros(5, 3)
    expected = describe_graph(model(few).sum(1), parameters)
    assert describe_graph(model(many).sum(1), parameters) == expected
    others = [model(few).sum(1).tanh(), model(few).sum(1).exp(), model(few).tanh().sum(1)]
    assert len({expected, *(describe_graph(losses, parameters) for losses in others)}) == 4


def test_inputs_with_a_gradient_are_other_leaves_and_parameters_of_the_model_are_not():
    model, parameters = made()
    inputs = torch.ones(2, 3, requires_grad=True)
    assert [leaf is inputs for leaf in other_leaves(model(inputs).sum(1), parameters)] == [True]
    assert other_leaves(model(torch.ones(2, 3)).sum(1), parameters) == []


@pytest.mark.parametrize("look", [describe_graph, other_leaves])
def test_a_parameter_outside_the_model_is_refused_by_its_shape(look):
    model, parameters = made()
    head = nn.Parameter(torch.ones(2))
    with pytest.raises(RunError, match=r"trainable parameter of shape \(2,\) outside the clipped"):
        look(model(torch.ones(4, 3)) @ head, parameters)


def test_gradients_of_a_weighted_sum_leave_every_grad_as_it_was():
    model, parameters = made()
    inputs = torch.ones(2, 3, requires_grad=True)
    model.weight.grad = torch.full((2, 3), 7.0)
    weights = torch.tensor([1.0, 10.0])
    losses = model(inputs)[:, 0]
    found = ordinary_gradients(losses, parameters, weights=weights, retain_graph=True)
    assert torch.equal(found["weight"], torch.tensor([[11.0] * 3, [0.0] * 3]))
    assert torch.equal(model.weight.grad, torch.full((2, 3), 7.0))
    assert model.bias.grad is None and inputs.grad is None
    losses.sum().backward()


def test_a_parameter_without_a_gradient_is_left_out():
    model, parameters = made()
    frozen = {**parameters, "unused": nn.Parameter(torch.ones(1))}
    found = ordinary_gradients(model(torch.ones(2, 3))[:, 0], frozen, weights=torch.ones(2))
    assert set(found) == set(parameters)


def test_gradients_are_put_back_after_an_error_too():
    tensor = torch.ones(1, requires_grad=True)
    tensor.grad = torch.ones(1)
    with pytest.raises(ZeroDivisionError), gradients_kept([tensor]):
        assert tensor.grad is None
        tensor.grad = torch.zeros(1)
        raise ZeroDivisionError
    assert torch.equal(tensor.grad, torch.ones(1))
