"""The noise is Gaussian, independent, complete, on its grid and different in every run.

Most tests use ``GaussianNoise`` with fixed keys, so they are deterministic. A bound of five
standard deviations fails correct noise with a probability below one in a million.
"""

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor, nn

from tests.guarantees import reference
from tests.guarantees.by_hand import seeded_noise

DEVIATIONS = 5
BLOCK = 2**20
"""Numbers of a parameter that share a block of the noise."""


def noise_of(
    *shapes: tuple[int, ...], steps: int = 1, std: float = 1.0, gradient: float | None = None
) -> list[list[Tensor]]:
    """Return the noise of each parameter in each step, flattened.

    Args:
        shapes: The parameters' shapes.
        steps: How many steps.
        std: The noise's standard deviation.
        gradient: The value of every gradient before the noise; None if there is no gradient.
    """
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    source = seeded_noise(parameters, noise_std=std, expected_batch_size=1, seed=1)
    found = []
    for _ in range(steps):
        for p in parameters:
            p.grad = None if gradient is None else torch.full_like(p, gradient)
        source.privatize_gradients()
        found.append([p.grad.flatten().clone() for p in parameters])
    return found


def test_noise_is_gaussian_with_the_planned_standard_deviation() -> None:
    ((values,),) = noise_of((100_000,), std=0.25)
    assert float(values.std()) == pytest.approx(0.25, rel=DEVIATIONS / np.sqrt(2 * len(values)))
    assert kstest((values / 0.25).double().numpy(), "norm").pvalue > 1e-6


def test_numbers_of_noise_are_independent() -> None:
    """No two of four steps and three parameters of one shape have correlated noise."""
    steps = noise_of((50, 40), (50, 40), (2000,), steps=4)
    vectors = [values.double().numpy() for step in steps for values in step]
    for one, other in combinations(vectors, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < DEVIATIONS / np.sqrt(len(one))


@pytest.mark.slow
def test_blocks_of_a_parameter_differ() -> None:
    ((values,),) = noise_of((2 * BLOCK,))
    first, second = values.double().numpy().reshape(2, BLOCK)
    assert abs(np.corrcoef(first, second)[0, 1]) < DEVIATIONS / np.sqrt(BLOCK)


def test_every_parameter_gets_noise() -> None:
    """Also one of a single number, and one without a gradient."""
    shapes = ((), (1,), (3,), (2, 2))
    for gradient in (None, 0.0):
        (values,) = noise_of(*shapes, gradient=gradient)
        assert all(bool((each != 0).all()) for each in values)


@pytest.mark.parametrize("std", [1.0, 0.3, 1e-4])
def test_noisy_numbers_are_on_the_grid(std: float) -> None:
    """The grid's spacing is the power of two in (2^-21, 2^-20] standard deviations."""
    ((values,),) = noise_of((1000,), std=std, gradient=std / 3)
    spacing = 2.0 ** np.floor(np.log2(std)) * 2.0**-20
    multiples = values.double().numpy() / spacing
    assert np.array_equal(multiples, np.round(multiples))


@pytest.mark.slow
def test_two_runs_draw_other_noise(tmp_path: Path) -> None:
    """Without a test seed no run repeats the noise of another one."""
    weights = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        run = reference.train(tmp_path / name, "bitfit", "privacy.noise_seed=null", "train.steps=1")
        weights.append(reference.tensors_of(run))
    moved = [name for name in weights[0] if name.endswith("bias")]
    assert moved
    assert not any(torch.equal(weights[0][name], weights[1][name]) for name in moved)


@pytest.mark.slow
def test_banded_noise_is_correlated(tmp_path: Path) -> None:
    """The sum of a run's noise has the variance that the mechanism of its ledger gives.

    With C the banded Toeplitz matrix of the coefficients, the noise of the steps is C^-1 z for
    independent standard Gaussians z (Choquette-Choo et al. 2023, arXiv 2306.08153).
    """
    words = ("mechanism=banded", "mechanism.bands=4")
    run = reference.noise_only(tmp_path, "bitfit", *words)
    plan = json.loads((run / "ledger.jsonl").read_text().splitlines()[0])["plan"]
    coefficients = plan["mechanism"]["coefficients"]
    steps = reference.STEPS
    columns = [([0] * step + coefficients + [0] * steps)[:steps] for step in range(steps)]
    matrix = np.array(columns).T
    deviation = np.linalg.norm(np.ones(steps) @ np.linalg.inv(matrix))
    assert deviation < 0.9 * np.sqrt(steps), "the test cannot tell the two apart"
    start, released = reference.tensors_of_model(), reference.tensors_of(run)
    updates = [(released[name] - start[name]).flatten() for name in start]
    moved = torch.cat([update for update in updates if bool(update.any())])
    std = plan["noise_multiplier"] * plan["phases"][0]["sensitivity"]
    expected = deviation * std * reference.LEARNING_RATES["bitfit"]
    tolerance = DEVIATIONS / np.sqrt(2 * moved.numel())
    assert float(moved.std()) == pytest.approx(expected, rel=tolerance)
