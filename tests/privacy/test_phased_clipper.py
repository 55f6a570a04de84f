import pytest
import torch
from torch import nn

from dpft.errors import RunError
from dpft.privacy.clipping.clipper import ClippingOptions
from dpft.privacy.clipping.engine import rounding_headroom
from dpft.privacy.phased_clipper import PhasedClipper
from dpft.privacy.plan import Phase
from tests.privacy.test_engine import PHASES, RECORDS, affine
from tests.privacy.test_plan import plan

OPTIONS = ClippingOptions(max_grad_norm=1.0)
ROOM = 1 - rounding_headroom(10)


def clipper(model: nn.Module, step: int = 0, **changes) -> PhasedClipper:
    return PhasedClipper(model, plan(phases=PHASES, **changes), step=step, options=OPTIONS)


def norm_of_one(model: nn.Module, phased: PhasedClipper) -> float:
    """Norm of what one record adds to the sum."""
    model.zero_grad()
    phased.accumulate(lambda: model(RECORDS[:1])[:, 0])
    return float(torch.cat([p.grad.flatten() for p in phased.parameters]).norm())


def test_each_step_is_clipped_at_its_phases_norm_less_the_headroom():
    """Not at the norm of the options, which is another."""
    model = affine()
    with clipper(model) as phased:
        phased.begin_step(0)
        assert norm_of_one(model, phased) == pytest.approx(0.1 * ROOM, rel=1e-5)
        model.weight.requires_grad_(False)
        for step in (1, 2):
            phased.begin_step(step)
            assert norm_of_one(model, phased) == pytest.approx(0.01 * ROOM, rel=1e-5)
            assert [p is model.bias for p in phased.parameters] == [True]
    assert "forward" not in vars(model)


def test_a_run_that_goes_on_begins_in_the_phase_it_is_in():
    model = affine()
    model.weight.requires_grad_(False)
    with clipper(model, step=2) as phased:
        phased.begin_step(2)
        assert norm_of_one(model, phased) == pytest.approx(0.01 * ROOM, rel=1e-5)


@pytest.mark.parametrize("place", [0, 1])
def test_a_phase_whose_sensitivity_is_not_its_clippers_is_refused_before_any_step(place):
    phases = list(PHASES)
    method, steps, norm = PHASES[place].method, PHASES[place].steps, PHASES[place].max_grad_norm
    phases[place] = Phase(method=method, steps=steps, max_grad_norm=norm, sensitivity=norm / 2)
    with pytest.raises(ValueError, match="every phase's sensitivity"):
        PhasedClipper(affine(), plan(phases=tuple(phases)), step=0, options=OPTIONS)


def test_what_trains_may_not_change_within_a_phase():
    model = affine()
    with clipper(model) as phased:
        phased.begin_step(0)
        model.weight.requires_grad_(False)
        with pytest.raises(RunError, match="stay those the phase began with"):
            phased.check_parameters()
