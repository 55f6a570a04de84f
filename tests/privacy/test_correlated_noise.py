"""The noise of a stream: by the recursion, of secret Gaussians, and the same wherever it is cut."""

import numpy as np
import pytest
import torch
from torch import nn

from dpft.privacy import noise as noise_module
from dpft.privacy.noise import CorrelatedNoise, IndependentNoise, add_noise, grid
from dpft.privacy.randomness import make_randomness
from tests.privacy.noise_blocks import block_noise

CPU = torch.device("cpu")
COEFFICIENTS = (0.7, 0.5, 0.4)
STD = 0.25


def stream(seed: int = 5):
    return make_randomness(CPU, noise_seed=seed).noise


def correlated(coefficients=COEFFICIENTS, history=None) -> CorrelatedNoise:
    return CorrelatedNoise(stream(), coefficients, history or {})


def taken(noise, steps: int, *, size: int = 64, start: int = 0) -> np.ndarray:
    """The released noise of some steps, on sums of nothing, over ``STD``; shape (steps, size)."""
    rows = []
    for step in range(start, start + steps):
        held = nn.Parameter(torch.zeros(size, dtype=torch.float64))
        held.grad = torch.zeros(size, dtype=torch.float64)
        noise.add({"w": held}, STD, step=step)
        rows.append(held.grad.numpy() / STD)
    return np.stack(rows)


def by_hand(fresh: np.ndarray) -> np.ndarray:
    x = np.zeros_like(fresh)
    for step in range(len(fresh)):
        x[step] = fresh[step]
        for lag, coefficient in enumerate(COEFFICIENTS[1:], start=1):
            if step >= lag:
                x[step] -= coefficient * x[step - lag]
        x[step] /= COEFFICIENTS[0]
    return x


def fresh_gaussians(steps: int, size: int = 64) -> np.ndarray:
    return np.stack([block_noise(stream(), size, step=step).numpy() for step in range(steps)])


def test_c_times_the_noise_is_the_fresh_gaussians_of_each_step():
    noise = correlated()
    released, expected = taken(noise, 6), by_hand(fresh_gaussians(6))
    assert np.abs(released - expected).max() <= grid(STD) / STD / 2 * 1.001
    # of unrounded noise, not of what was released: a grid is 1e-6 of a standard deviation
    kept = noise.history()["0.0.0.32"].numpy()
    assert kept.shape == (2, 32)
    assert np.abs(kept - expected[[5, 4], :32]).max() < 1e-14


def test_the_noise_has_the_covariance_of_the_inverse_matrix():
    """Of 40,000 coordinates: an entry's sampling error is at most 0.03 of the largest."""
    released = taken(correlated(), 5, size=40_000)
    matrix = sum(c * np.eye(5, k=-lag) for lag, c in enumerate(COEFFICIENTS))
    inverse = np.linalg.inv(matrix)
    expected = inverse @ inverse.T
    found = released @ released.T / released.shape[1]
    assert np.abs(found - expected).max() < 0.03 * np.abs(expected).max()
    assert np.abs(expected - np.diag(np.diag(expected))).max() > 0.3 * np.abs(expected).max()


def test_numbers_that_got_no_noise_in_a_step_begin_anew():
    """Else two steps of a unit that are as many apart as there are bands would share a row."""

    def released(noise, trains: str) -> np.ndarray:
        held = {name: nn.Parameter(torch.zeros(8, dtype=torch.float64)) for name in "wv"}
        for name, parameter in held.items():
            parameter.requires_grad = name in trains
        noise.add(held, STD, step=released.step)
        released.step += 1
        return np.concatenate([p.grad.numpy() / STD for p in held.values() if p.requires_grad])

    released.step, noise = 0, correlated()
    for trains in ("wv", "w"):
        released(noise, trains)
    found = released(noise, "wv")
    released.step = 2
    fresh = released(IndependentNoise(stream()), "wv")
    begun = np.abs(found - fresh / COEFFICIENTS[0]) < 2 * grid(STD) / STD
    assert begun[8:].all() and not begun[:8].all()


def test_one_band_is_independent_noise():
    alone = taken(IndependentNoise(stream()), 3)
    assert np.array_equal(taken(correlated((1.0,)), 3), alone)
    assert correlated((1.0,)).history() == {} == IndependentNoise(stream()).history()


@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_stream_goes_on_from_its_history_as_if_it_had_never_stopped(before):
    whole = correlated()
    expected = taken(whole, 6)
    first = correlated()
    if before:
        taken(first, before)
    kept = {name: rows.clone() for name, rows in first.history().items()}
    second = correlated(history=kept)
    assert np.array_equal(taken(second, 6 - before, start=before), expected[before:])
    if before:
        fresh = taken(correlated(), 6 - before, start=before)
        assert not np.array_equal(fresh, expected[before:])


def test_a_number_has_the_same_bits_in_whatever_stretch_it_lies(monkeypatch):
    """Two parameters, of several blocks, cut at odd places as shards are."""
    monkeypatch.setattr(noise_module, "BLOCK", 40)

    class Cut:
        """Sums of which each stretch is finished by itself."""

        def __init__(self, values, *edges):
            self.values, self.edges = values, edges

        def reduce_sums(self, block, finish):
            for start, end in zip(self.edges, self.edges[1:], strict=False):
                for a, b, piece in noise_module.pieces_between(
                    0, start, end, total=len(self.values), block=block
                ):
                    finish([(piece, self.values[a:b])])

    found = []
    for edges in ((0, 101), (0, 7, 40, 63, 101), (0, 39, 101)):
        noise = correlated()
        for step in range(4):
            values = torch.zeros(101, dtype=torch.float64)
            noise.add(Cut(values, *edges), STD, step=step)
        found.append(values)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    alone = torch.zeros(101, dtype=torch.float64)
    add_noise(Cut(alone, 0, 101), STD, stream(), 3)
    assert not torch.equal(alone, found[0])
