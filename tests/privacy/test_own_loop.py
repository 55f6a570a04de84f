"""Poisson batches and noise for a loop of one's own: the laws that an accountant assumes."""

import math

import pytest
import torch
from torch import nn

import dpft
from dpft.privacy.clipping import PerExampleClipper
from dpft.privacy.noise import grid
from dpft.privacy.own_loop import GaussianNoise, PoissonBatches
from tests.rejections import rejects


def test_batches_are_binomial_ascending_and_each_step_is_another_draw() -> None:
    batches = list(PoissonBatches(num_examples=400, expected_batch_size=100, steps=500))
    sizes = torch.tensor([len(batch) for batch in batches]).double()
    # Binomial(400, 1/4): mean 100, variance 75; five standard errors each.
    assert len(sizes) == 500 and abs(sizes.mean() - 100) < 5 * math.sqrt(75 / 500)
    assert abs(sizes.var() / 75 - 1) < 5 * math.sqrt(2 / 500)
    joined = torch.bincount(torch.cat(batches), minlength=400).double()
    # each joins Binomial(500, 1/4) times; 6 standard deviations for the worst of 400
    assert len(joined) == 400 and (joined - 125).abs().max() < 6 * math.sqrt(93.75)
    assert all((batch.diff() > 0).all() for batch in batches)
    assert not torch.equal(batches[0], batches[1]) and batches[0].dtype == torch.int64


def test_an_empty_batch_is_a_batch_and_none_comes_after_the_last() -> None:
    batches = PoissonBatches(num_examples=2, expected_batch_size=0.01, steps=50)
    drawn = list(batches)
    assert len(drawn) == len(batches) == 50 and any(batch.shape == (0,) for batch in drawn)
    with rejects("steps", 50):
        next(iter(batches))


def test_two_runs_share_no_key() -> None:
    one, other = (
        list(PoissonBatches(num_examples=1000, expected_batch_size=500, steps=1)) for _ in range(2)
    )
    assert not torch.equal(one[0], other[0])


def test_noise_has_its_standard_deviation_is_new_each_step_and_is_divided_once() -> None:
    layer = nn.Linear(300, 300)
    layer.bias.requires_grad_(False)
    noise = GaussianNoise(layer.parameters(), noise_std=3.0, expected_batch_size=10)
    layer.weight.grad = torch.full_like(layer.weight, 5.0)
    noise.privatize_gradients()
    first = layer.weight.grad.double() * 10 - 5.0
    layer.weight.grad = None
    noise.privatize_gradients()
    second = layer.weight.grad.double() * 10
    for drawn in (first, second):
        # standard errors of mean and deviation of 90,000 normals, five of each
        assert abs(drawn.mean()) < 5 * 3 / 300 and abs(drawn.std() / 3 - 1) < 5 / (300 * 2**0.5)
    assert abs((first * second).mean()) < 5 * 9 / 300
    assert layer.bias.grad is None
    on_grid = (second / grid(3.0)).round() * grid(3.0)
    assert torch.allclose(second, on_grid, rtol=1e-6)


@pytest.mark.parametrize(
    ("key", "value"), [("expected_batch_size", 11), ("expected_batch_size", 0), ("steps", 0)]
)
def test_batches_that_cannot_be_are_refused(key: str, value: int) -> None:
    with rejects(key, value):
        PoissonBatches(**{"num_examples": 10, "expected_batch_size": 5, "steps": 1} | {key: value})


def test_noise_that_protects_nothing_is_refused() -> None:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with rejects("noise_std", 0.0):
        GaussianNoise(nn.Linear(2, 2).parameters(), noise_std=0.0, expected_batch_size=1)
    with rejects("parameters"):
        GaussianNoise(frozen.parameters(), noise_std=1.0, expected_batch_size=1)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_accounting")
def test_a_loop_of_ones_own_learns_within_its_budget() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(500, 4)
    targets = inputs @ torch.tensor([1.0, -2.0, 0.5, 0.0])
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    cost = dpft.account(
        num_examples=500, expected_batch_size=100, steps=40, eps=8, delta=1e-5, accountant="rdp"
    )
    batches = PoissonBatches(num_examples=500, expected_batch_size=100, steps=cost.steps)
    noise = GaussianNoise(
        model.parameters(), noise_std=cost.mechanism.noise_multiplier, expected_batch_size=100
    )

    def losses_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return (model(batch[0])[:, 0] - batch[1]).square()

    before = losses_of(model, (inputs, targets)).mean().item()
    with PerExampleClipper(model, losses_of, max_grad_norm=1.0) as clipper:
        clipper.self_check((torch.randn(4, 4), torch.randn(4)))
        for batch in batches:
            optimizer.zero_grad()
            for rows in batch.split(64) if len(batch) else ():
                clipper.accumulate((inputs[rows], targets[rows]))
            noise.privatize_gradients()
            optimizer.step()
    assert cost.epsilon <= 8 and len(batches) == 40
    assert losses_of(model, (inputs, targets)).mean().item() < before / 4
