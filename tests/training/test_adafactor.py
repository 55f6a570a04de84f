"""Adafactor against the published algorithm, written here in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpft.training.adafactor import is_factored
from dpft.training.optimizers import Adafactor
from tests.slowness import slow_but

STEPS = 10
LARGE, SMALL, LONG, VECTOR = (130, 140), (3, 5), (32, 512), (7,)


def published_adafactor(
    start: np.ndarray, gradients: list[np.ndarray], *, rate: float, factored: bool
) -> np.ndarray:
    """Shazeer and Stern 2018, Algorithms 4 (factored) and 5 (whole); its constants are T5X's."""
    x, rows, columns, whole = start.astype(np.float64), 0.0, 0.0, 0.0
    for step, gradient in enumerate(gradients, start=1):
        decay, square = 1 - step**-0.8, gradient.astype(np.float64) ** 2 + 1e-30
        if factored:
            rows = decay * rows + (1 - decay) * square.mean(axis=1)
            columns = decay * columns + (1 - decay) * square.mean(axis=0)
            second = np.outer(rows, columns) / rows.mean()
        else:
            second = whole = decay * whole + (1 - decay) * square
        update = gradient / np.sqrt(second)
        update /= max(1.0, np.sqrt((update**2).mean()))
        x = x - rate * max(1e-3, np.sqrt((x**2).mean())) * update
    return x


def optimizer_of(parameter: nn.Parameter, **settings: Any) -> torch.optim.Optimizer:
    config = Adafactor(**settings)
    return config.make([parameter], learning_rate=0.1, weight_decay=0.0)


@pytest.mark.parametrize("gradient_size", slow_but([5e-8], [1.0, 5e-8]), ids=str)
@pytest.mark.parametrize("weight_size", [1.0, 0.0], ids=["begun", "begins at zero"])
@pytest.mark.parametrize(
    ("shape", "least", "factored"),
    [
        (LARGE, 128, True),
        (SMALL, 128, False),
        (LONG, 128, False),
        (SMALL, 1, True),
        (VECTOR, 128, False),
        (VECTOR, 1, False),
    ],
)
def test_one_step_and_ten_are_the_published_ones(
    shape: tuple[int, ...], least: int, factored: bool, weight_size: float, gradient_size: float
) -> None:
    generator = np.random.default_rng(3)

    def draw(size: float) -> np.ndarray:
        return (size * generator.standard_normal(shape)).astype(np.float32)

    start, gradients = draw(weight_size), [draw(gradient_size) for _ in range(STEPS)]
    parameter = nn.Parameter(torch.tensor(start))
    optimizer = optimizer_of(parameter, min_dim_size_to_factor=least)
    for taken in range(1, STEPS + 1):
        parameter.grad = torch.tensor(gradients[taken - 1])
        optimizer.step()
        expected = published_adafactor(start, gradients[:taken], rate=0.1, factored=factored)
        error = np.abs(parameter.detach().numpy() - expected).max()
        assert error <= 1e-6 * np.abs(expected).max(), f"step {taken}"


def test_a_matrix_smaller_than_asked_for_is_kept_whole_and_a_larger_one_by_rows_and_columns():
    kept = {}
    for shape in (SMALL, LONG, LARGE, (128, 128), (127, 128)):
        parameter = nn.Parameter(torch.ones(shape))
        parameter.grad = torch.ones(shape)
        optimizer = optimizer_of(parameter)
        optimizer.step()
        moments = optimizer.state[parameter]
        kept[shape] = {name for name in moments if name.startswith("exp_avg")}
        numbers = sum(moments[name].numel() for name in kept[shape])
        assert Adafactor().state_numbers(shape) == numbers
    by_parts = {"exp_avg_sq_row", "exp_avg_sq_col"}
    assert kept[LARGE] == kept[128, 128] == by_parts
    assert kept[SMALL] == kept[LONG] == kept[127, 128] == {"exp_avg_sq"}


def test_the_last_two_dimensions_are_rows_and_columns() -> None:
    assert is_factored((2, 128, 256), 128)
    assert not is_factored((256, 128, 2), 128)
    assert Adafactor().state_numbers((2, 128, 256)) == 2 * 128 + 2 * 256
