import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from dpft.privacy.noise import Stream, add_noise
from dpft.privacy.randomness import NormalStream
from dpft.privacy.secure_noise import SecureNormalStream

CPU, KEY = torch.device("cpu"), bytes(range(32))


@pytest.fixture(params=[NormalStream, SecureNormalStream], ids=["pseudo_random", "secure"])
def source(request) -> Stream:
    return request.param(CPU, KEY)


def stream() -> NormalStream:
    return NormalStream(CPU, bytes(32))


def noise_of_a_step(sizes: list, noise_std: float, source: Stream) -> list[np.ndarray]:
    """What one step adds to parameters of these shapes, flat and in float64."""
    parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
    add_noise(parameters, noise_std, source)
    return [parameter.grad.flatten().double().numpy() for parameter in parameters]


def test_noise_has_the_standard_deviation_asked_for():
    parameter = nn.Parameter(torch.zeros(200, 500))
    parameter.grad = torch.full_like(parameter, 3.0)
    add_noise([parameter], 0.7, stream())
    draws = (parameter.grad - 3).flatten().numpy() / 0.7
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    assert abs(draws.var() - 1) < 5 * np.sqrt(2 / draws.size)


def test_a_million_draws_are_standard_normal_tails_included(source):
    """Kolmogorov-Smirnov; variance and kurtosis by their standard errors; counts beyond t."""
    draws = noise_of_a_step([(1000, 1000)], 2.5, source)[0] / 2.5
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    assert abs(draws.mean()) < 4 / 1e3
    assert abs(draws.var() - 1) < 4 * np.sqrt(2 / 1e6)
    assert abs(stats.kurtosis(draws)) < 4 * np.sqrt(24 / 1e6)
    for tail, expected in ((3, 2699.8), (4, 63.34), (4.5, 6.795)):  # 2 (1 - Phi(t)) 1e6
        assert abs((np.abs(draws) > tail).sum() - expected) < 4 * np.sqrt(expected), tail


def test_steps_and_parameters_are_uncorrelated_and_so_are_neighbors(source):
    """|r| < 4 / sqrt(n) for each pair of 3 steps x 3 parameters, and for lags within each."""
    count = 100_000
    rows = [row for _ in range(3) for row in noise_of_a_step([count] * 3, 1.0, source)]
    correlations = np.corrcoef(rows)[np.triu_indices(9, k=1)]
    lagged = [np.corrcoef(row[:-lag], row[lag:])[0, 1] for row in rows for lag in (1, 2, 16, 1024)]
    assert correlations.size == 36
    assert np.abs([*correlations, *lagged]).max() < 4 / np.sqrt(count - 1024)


def test_squares_of_two_steps_are_uncorrelated_too(source):
    """Plain correlation would miss a step whose noise is another's with new signs."""
    first, second = (noise_of_a_step([100_000], 1.0, source)[0] ** 2 for _ in range(2))
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / np.sqrt(100_000)


def test_a_parameter_without_a_gradient_gets_noise():
    parameter = nn.Parameter(torch.zeros(100))
    add_noise([parameter], 1.0, stream())
    assert parameter.grad.unique().numel() == 100


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
