import pytest
import torch

from dpft.errors import RunError
from dpft.privacy.clipping.options import ClippingOptions
from dpft.privacy.clipping.self_check import self_check
from dpft.privacy.clipping.squares import Squares
from dpft.privacy.clipping.uses import OuterUse
from tests.privacy.clipping.oracle import gpt2, records


def check(model):
    batches = [records().losses(model), records((5, 2)).losses(model)]
    return self_check(model, batches, ClippingOptions(max_grad_norm=0.5))


def test_a_sound_clipper_passes_and_the_model_is_left_alone():
    model = gpt2(dropout=0.2).train()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert check(model) < 1e-5
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_that_are_not_finite_are_said_to_be_that_and_name_the_scale():
    """Not the one-at-a-time loop, which nobody chose."""
    model = gpt2()
    with torch.no_grad():
        next(model.parameters())[:] = torch.inf
    with pytest.raises(RunError, match=r"not finite at `loss_scale=1`; no private record"):
        check(model)


def test_a_rule_that_misses_part_of_the_norm_stops_the_run_and_names_a_parameter(monkeypatch):
    squares = OuterUse.squares

    def too_small(use):
        found = squares(use)
        return Squares(0.9 * found.values, found.terms)

    monkeypatch.setattr(OuterUse, "squares", too_small)
    with pytest.raises(RunError, match=r"self-check failed.*most in parameter"):
        check(gpt2())
