import torch
from torch import nn

from dpft.batch_mixing import StandardizedConv2d, pulled_back, standardized


def test_filters_have_mean_0_and_variance_1():
    torch.manual_seed(0)
    filters = standardized(3 * torch.randn(5, 4, 3, 3) + 7).flatten(1)
    assert torch.allclose(filters.mean(1), torch.zeros(5), atol=1e-5)
    assert torch.allclose(filters.var(1, correction=0), torch.ones(5), atol=1e-4)


def test_it_is_the_convolution_with_the_standardized_weight():
    torch.manual_seed(0)
    plain, made = nn.Conv2d(4, 6, 3, stride=2), StandardizedConv2d(4, 6, 3, stride=2)
    made.load_state_dict(plain.state_dict())
    inputs = torch.randn(2, 4, 9, 9)
    expected = torch.conv2d(inputs, standardized(plain.weight), plain.bias, stride=2)
    assert torch.equal(made(inputs), expected)


def test_pulled_back_is_the_gradient_that_autograd_takes_through_the_standardization():
    torch.manual_seed(0)
    weight = torch.randn(5, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    gradients = torch.randn(3, 5, 4, 3, 3, dtype=torch.float64)
    expected = [torch.autograd.grad(standardized(weight), weight, g)[0] for g in gradients]
    assert torch.allclose(pulled_back(weight, gradients), torch.stack(expected), rtol=1e-10)
