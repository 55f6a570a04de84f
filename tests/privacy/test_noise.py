import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from dpft.privacy.noise import add_noise
from dpft.privacy.randomness import NormalStream


def stream() -> NormalStream:
    return NormalStream(torch.device("cpu"), bytes(32))


def test_noise_has_the_standard_deviation_asked_for():
    parameter = nn.Parameter(torch.zeros(200, 500))
    parameter.grad = torch.full_like(parameter, 3.0)
    add_noise([parameter], 0.7, stream())
    draws = (parameter.grad - 3).flatten().numpy() / 0.7
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    assert abs(draws.var() - 1) < 5 * np.sqrt(2 / draws.size)


def test_every_parameter_gets_noise_of_its_own_also_without_a_gradient():
    first, second = nn.Parameter(torch.zeros(20_000)), nn.Parameter(torch.zeros(20_000))
    add_noise([first, second], 1.0, stream())
    correlation = np.corrcoef(first.grad.numpy(), second.grad.numpy())[0, 1]
    assert abs(correlation) < 4 / np.sqrt(20_000)


def test_noise_of_two_steps_is_uncorrelated():
    parameter, source, steps = nn.Parameter(torch.zeros(20_000)), stream(), []
    for _ in range(2):
        parameter.grad = None
        add_noise([parameter], 1.0, source)
        steps.append(parameter.grad.numpy())
    assert abs(np.corrcoef(*steps)[0, 1]) < 4 / np.sqrt(20_000)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_large_gradient_gets_independent_noise_throughout(transposed, monkeypatch):
    monkeypatch.setattr("dpft.privacy.noise.BLOCK", 1000)
    parameter = nn.Parameter(torch.zeros(150, 70).t() if transposed else torch.zeros(70, 150))
    add_noise([parameter], 2.0, stream())
    draws = parameter.grad.flatten().numpy() / 2
    assert len(set(draws)) > 0.999 * draws.size
    assert stats.kstest(draws, "norm").pvalue > 1e-3


def test_noise_is_float32_or_the_models_float64():
    for dtype in (torch.float32, torch.float64):
        parameter = nn.Parameter(torch.zeros(3, dtype=dtype))
        add_noise([parameter], 1.0, stream())
        assert parameter.grad.dtype == dtype
