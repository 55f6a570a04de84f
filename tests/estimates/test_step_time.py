"""Time and memory from shapes and speeds: against counts by hand."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from dpft.estimates import step_time
from dpft.estimates.step_time import (
    STEP_SECONDS,
    MachineSpeed,
    ModelShapes,
    estimate,
    model_shapes,
    operations_per_token,
)

FREE = MachineSpeed(
    operations_per_second=float("inf"), values_per_second=float("inf"),
    noise_per_second=float("inf"), seconds_per_layer=0.0,
)  # fmt: skip
RUN = {"typical_length": 15, "micro_batch_size": 4, "expected_batch_size": 10, "steps": 3}


def model(*trains: int) -> nn.Sequential:
    """An embedding of 7 words and three dense layers, of which those of these numbers train."""
    layers = nn.Sequential(
        nn.Embedding(7, 2), nn.Linear(2, 3), nn.Linear(3, 5, bias=False), nn.Linear(5, 7)
    )
    for number, layer in enumerate(layers):
        layer.requires_grad_(number in trains)
    return layers


def shapes(*trains: int, **options: bool) -> ModelShapes:
    return model_shapes(model(*trains), **options)


def test_matrices_count_by_what_goes_through_them() -> None:
    found = shapes(2)
    assert (found.forward_weights, found.trained_weights, found.frozen_weights) == (6, 15, 35)
    assert (found.layers, found.outputs, found.logits) == (4, 5 + 8 + 12, 7)
    assert (found.trainable, found.total) == (15, 14 + 9 + 15 + 42)
    assert shapes(2, enters_early=True).forward_weights == 0
    assert shapes(0, 1, 2, 3).frozen_weights == shapes(0, 1, 2, 3).forward_weights == 0


def test_a_matrix_that_trains_costs_three_products_and_a_norm_where_it_is_clipped() -> None:
    assert operations_per_token(shapes(2), private=False) == 2 * 6 + 4 * 35 + 6 * 15
    assert operations_per_token(shapes(2), private=True) == 2 * 6 + 4 * 35 + 8 * 15


@pytest.mark.parametrize(
    ("speed", "seconds"),
    [
        # ten records of 15 tokens
        ({"operations_per_second": 1.0}, 10 * 15 * (2 * 6 + 4 * 35 + 8 * 15)),
        # three micro-batches, four layers
        ({"seconds_per_layer": 1.0}, 3 * 4),
        ({"noise_per_second": 1.0}, 15),
        ({"values_per_second": 10.0}, 10 * 15 * 25 + 15),
    ],
)
def test_each_part_of_a_step_takes_its_time(speed: dict[str, float], seconds: float) -> None:
    found = estimate(shapes(2), replace(FREE, **speed), private=True, peak_memory_bytes=0, **RUN)
    assert found.seconds_per_step == pytest.approx(STEP_SECONDS + seconds)


def test_the_whole_has_the_proof_of_the_first_micro_batch_where_gradients_are_clipped() -> None:
    speed = replace(FREE, seconds_per_layer=1.0)
    private = estimate(shapes(2), speed, private=True, peak_memory_bytes=0, **RUN)
    assert private.seconds_total == pytest.approx(3 * private.seconds_per_step + 5 * 4)
    ordinary = estimate(shapes(2), speed, private=False, peak_memory_bytes=0, **RUN)
    assert ordinary.seconds_total == pytest.approx(3 * ordinary.seconds_per_step)


def test_memory_is_what_was_planned_for_a_process() -> None:
    found = estimate(shapes(2), FREE, private=True, peak_memory_bytes=1000, **RUN)
    assert found.peak_memory_bytes == 1000


def test_what_the_probed_layers_lose_is_more_than_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a device that rounds otherwise for other batch sizes is taken for one that mixes."""
    given: list[torch.Tensor] = []

    def keep(module: nn.Module, args: object, output: torch.Tensor) -> None:
        if isinstance(module, nn.Sequential):
            given.append(output.detach())

    monkeypatch.setattr(step_time, "_seconds_of", lambda work: work() or 1.0)
    hook = nn.modules.module.register_module_forward_hook(keep)
    try:
        step_time._seconds_per_layer(torch.device("cpu"), None)
    finally:
        hook.remove()
    sums = given[0].sum((1, 2)).abs()
    assert bool((sums > 1e-4 * given[0].abs().sum((1, 2))).all())
