"""What every engine refuses, and how norms become factors."""

import pytest
import torch
from torch import nn

from dpft.errors import InputError, RunError
from dpft.privacy.clipping.choices import LOSS_SCALES, Tuning
from dpft.privacy.clipping.engine import (
    Engine,
    check_is_tensor,
    check_losses,
    check_units,
    clipping_style,
)


class NoEngine(Engine):
    """The parts that all engines share."""

    def install(self):
        raise AssertionError("nothing is installed here")

    remove = accumulate = compute = install


def engine_of(model, *, clipping="flat", groups=1, numbers=None, **tuning) -> NoEngine:
    style = clipping_style(clipping, max_grad_norm=1.0, groups=groups)
    return NoEngine(model, style, groups=numbers, tuning=Tuning(**tuning))


def test_a_model_without_a_trainable_parameter_is_refused():
    with pytest.raises(InputError, match="must have a trainable parameter, got none"):
        engine_of(nn.Linear(2, 2).requires_grad_(False))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_trainable_parameter_in_half_precision_is_refused_by_name_and_a_frozen_one_is_not(dtype):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, dtype=dtype))
    with pytest.raises(InputError, match=rf"1\.weight must be float32 or float64, got {dtype}"):
        engine_of(model)
    model[1].requires_grad_(False)
    assert engine_of(model).trainable.names == ("0.weight", "0.bias")


def freeze(model):
    model[0].bias.requires_grad_(False)


def unfreeze(model):
    model[1].bias.requires_grad_(True)


def replace(model):
    model[0].bias = nn.Parameter(torch.zeros(3))


@pytest.mark.parametrize("change", [freeze, unfreeze, replace])
def test_what_trains_must_stay_what_it_was(change):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].requires_grad_(False)
    engine = engine_of(model)
    engine.check_unchanged()
    change(model)
    with pytest.raises(RunError, match=r"\d\.bias was frozen, unfrozen or replaced"):
        engine.check_unchanged()


def test_norms_of_unscaled_losses_decide_factors_for_scaled_gradients():
    engine = engine_of(nn.Linear(2, 2), loss_scale=8.0)
    # Norms 4 and 0.5 of the losses themselves, 32 and 4 of the scaled ones.
    squares = torch.tensor([[32.0**2, 4.0**2]], dtype=torch.float64)
    decision = engine.decide_clipping(squares, torch.tensor([True, True]))
    assert decision.everyone_is_finite and decision.finite.tolist() == [True, True]
    assert torch.equal(decision.norms, torch.tensor([4.0, 0.5]))
    # min(1, 1 / norm), and the scale divided out.
    assert torch.allclose(decision.factors, torch.tensor([[0.25 / 8, 1 / 8]]), rtol=1e-5)


def test_each_group_has_a_factor_and_all_have_one_norm():
    model = nn.Linear(2, 2)
    engine = engine_of(model, clipping="per_layer", groups=2, numbers={"weight": 0, "bias": 1})
    squares = engine.new_squares(1) + torch.tensor([[9.0], [16.0]])
    decision = engine.decide_clipping(squares, torch.tensor([True]))
    # Each of two groups is clipped at 1 / sqrt(2).
    assert torch.allclose(decision.factors, torch.tensor([[1 / 3], [1 / 4]]) / 2**0.5, rtol=1e-5)
    assert torch.equal(decision.norms, torch.tensor([5.0]))


def test_what_is_not_finite_takes_no_part_and_spoils_no_other():
    engine = engine_of(nn.Linear(2, 2))
    squares = torch.tensor([[4.0, float("nan"), float("inf"), 4.0, -1e-30]], dtype=torch.float64)
    finite = torch.tensor([True, True, True, False, True])
    decision = engine.decide_clipping(squares, finite)
    assert decision.finite.tolist() == [True, False, False, False, True]
    assert not decision.everyone_is_finite and bool(decision.factors.isfinite().all())
    assert decision.norms.tolist() == [2.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("scale", [0.0, 0.5, 2 * LOSS_SCALES[1], float("nan"), float("inf")])
def test_a_loss_scale_out_of_range_is_refused(scale):
    with pytest.raises(InputError, match="`loss_scale` must be from 1 to"):
        Tuning(loss_scale=scale)


def test_a_negative_memory_is_refused():
    with pytest.raises(InputError, match="`memory_mb` must not be negative, got -1"):
        Tuning(memory_mb=-1)


def test_losses_must_be_one_per_example_with_a_graph():
    with pytest.raises(InputError, match=r"tensor of shape \(b,\), one per example, got float"):
        check_is_tensor(0.5)
    with pytest.raises(InputError, match="do not reduce over the batch"):
        check_losses(torch.ones((), requires_grad=True))
    with pytest.raises(InputError, match="got losses without a graph"):
        check_losses(torch.ones(3))
    check_losses(torch.ones(3, requires_grad=True))


@pytest.mark.parametrize(
    "units", [torch.ones(3), [0, 1, 2], torch.arange(2), torch.ones(3, 1).int()]
)
def test_units_must_be_one_whole_number_a_row(units):
    with pytest.raises(InputError, match="one unit per row"):
        check_units(units, 3)
    check_units(torch.arange(3), 3)
    check_units(torch.tensor([4, 2, 2, 4]), 2)
