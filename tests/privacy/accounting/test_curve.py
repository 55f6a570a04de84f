"""Epsilon after growing numbers of steps: the curve of a run, and a sweep for tables and plots."""

import math
from dataclasses import replace

import pytest

from dpft.privacy.accounting import curve as curve_module
from dpft.privacy.accounting import pld, rdp, summary
from dpft.privacy.accounting.calibration import Calibration
from dpft.privacy.accounting.curve import (
    EpsilonCurve,
    EpsilonSoFar,
    curve_grid,
    curve_through,
    epsilon_curve,
    epsilon_over_steps,
    failures,
    step_grid,
)
from dpft.privacy.accounting.mechanism import AccountantError, Epsilon, SampledGaussian
from dpft.privacy.accounting.summary import account
from tests.privacy.test_plan import plan
from tests.rejections import rejects

MECHANISM = SampledGaussian(noise_multiplier=1.5, sample_rate=0.25, steps=100, delta=1e-3)
CURVE = EpsilonCurve(steps=(1, 10, 100), epsilons=(0.5, 1.5, 4.0), accountants=("prv",) * 3)


def bound(steps: int) -> float:
    return rdp.epsilon(replace(MECHANISM, steps=steps)).upper


@pytest.mark.parametrize("steps", [1, 2, 15, 16, 17, 39, 40, 41, 10**6])
@pytest.mark.parametrize(("grid_of", "fewest", "most"), [(curve_grid, 24, 40), (step_grid, 16, 17)])
def test_a_grid_goes_from_one_step_to_all_in_few_points(grid_of, fewest, most, steps):
    grid = grid_of(steps)
    assert (grid[0], grid[-1]) == (1, steps)
    assert grid == sorted(set(grid))
    assert min(steps, fewest) <= len(grid) <= most


@pytest.mark.slow
def test_between_two_points_the_next_ones_bound_holds_and_never_understates():
    """Oracle: PLD of each number of steps by itself; a curve of a few of them."""
    exact = {steps: pld.epsilon(replace(MECHANISM, steps=steps)).upper for steps in range(1, 13)}
    some = (1, 5, 12)
    epsilons = tuple(exact[steps] for steps in some)
    curve = EpsilonCurve(steps=some, epsilons=epsilons, accountants=("pld",) * 3)
    after = [curve.after(steps).epsilon for steps in exact]
    assert all(shown >= exact[steps] for steps, shown in zip(exact, after, strict=True))
    assert after == [exact[steps] for steps in (1, 5, 5, 5, 5, *[12] * 7)]
    assert curve.after(13) is None


def test_a_lower_bound_of_more_steps_bounds_fewer_too():
    points = [(1, 0.5, "prv"), (2, 3.0, "rdp"), (3, 1.0, "pld"), (4, math.inf, "rdp")]
    assert curve_through(points) == EpsilonCurve(
        steps=(1, 2, 3), epsilons=(0.5, 1.0, 1.0), accountants=("prv", "pld", "pld")
    )
    assert curve_through([]).after(1) is None


def test_what_is_spent_is_the_bound_of_the_curve():
    so_far = EpsilonSoFar(plan(steps=100), CURVE)
    assert (so_far(11).epsilon, so_far(11).accountant) == (4.0, "prv")
    assert so_far(0).epsilon == 0


def test_the_whole_plans_bound_covers_every_prefix():
    whole = Calibration(accountant="pld", epsilon=0.1, grid="")
    so_far = EpsilonSoFar(plan(steps=4, calibration=whole), curve_through([]))
    assert (so_far(4).epsilon, so_far(4).accountant) == (0.1, "pld")
    assert so_far(3).epsilon <= 0.1
    assert so_far(0).epsilon == 0


@pytest.mark.parametrize("curve", [curve_through([]), CURVE])
@pytest.mark.parametrize("steps", [101, 123])
def test_steps_beyond_the_plan_are_bounded_too(steps, curve):
    """A resume that draws new noise takes steps again, and every one of them counts."""
    whole = Calibration(accountant="pld", epsilon=0.1, grid="")
    so_far = EpsilonSoFar(plan(steps=100, calibration=whole), curve)
    assert so_far(steps).epsilon == pytest.approx(bound(steps), rel=1e-12)


def test_rdps_curve_has_no_point_that_rdp_cannot_bound(monkeypatch):
    assert epsilon_curve(MECHANISM, "rdp").epsilons[-1] == bound(100)

    def fails_from_two_steps_on(name: str, mechanism: SampledGaussian) -> Epsilon:
        if mechanism.steps > 1:
            raise AccountantError("It gives no finite upper value.")
        return Epsilon(upper=0.5)

    monkeypatch.setattr(curve_module, "evaluate", fails_from_two_steps_on)
    only = EpsilonCurve(steps=(1,), epsilons=(0.5,), accountants=("rdp",))
    assert epsilon_curve(MECHANISM, "rdp") == only
    assert math.isinf(EpsilonSoFar(plan(), only)(2).epsilon)


RARE = SampledGaussian(noise_multiplier=1.5, sample_rate=0.01, steps=200, delta=1e-5)


@pytest.fixture
def answering(monkeypatch):
    """Return a function that lets accountants answer up to some numbers of steps."""

    def use(**most):
        def evaluate(name, mechanism, **options):
            if mechanism.steps > most.get(name, 10**9):
                raise AccountantError(f"{mechanism.steps} steps are too many.")
            value = mechanism.steps / 100
            return Epsilon(lower=value, estimate=value, upper=None if name == "gdp" else value)

        monkeypatch.setattr(summary, "evaluate", evaluate)

    return use


@pytest.mark.slow
def test_epsilon_does_not_fall_as_steps_are_taken():
    few = replace(RARE, steps=6)
    reports = epsilon_over_steps(few, accountant="pld")
    epsilons = [report.epsilon for report in reports]
    assert epsilons == sorted(epsilons)
    assert reports[-1].mechanism == few
    assert failures(reports) == []


def test_where_an_accountant_fails_another_leads_and_the_steps_are_named(answering):
    answering(prv=175, pld=188)
    reports = epsilon_over_steps(RARE, accountant="prv")
    assert [report.accountant for report in reports[-3:]] == ["prv", "pld", "rdp"]
    prv, pld = failures(reports)
    assert (pld.accountant, pld.steps) == ("pld", (200,))
    assert (prv.accountant, prv.steps) == ("prv", (188, 200))
    assert prv.reason == "188 steps are too many."


def test_it_ends_where_no_accountant_goes_on_and_refuses_if_none_begins(answering):
    answering(prv=50, pld=50, rdp=50)
    reports = epsilon_over_steps(RARE, accountant="rdp")
    assert reports[-1].mechanism.steps == 50
    answering(prv=0, pld=0, rdp=0)
    with rejects("noise_multiplier"):
        epsilon_over_steps(RARE, accountant="rdp")


SHORT = SampledGaussian(noise_multiplier=1.5, sample_rate=0.25, steps=3, delta=1e-3)


@pytest.mark.slow
def test_every_point_is_what_is_reported_of_so_many_steps():
    curve = epsilon_curve(SHORT, "prv")
    expected = [account(replace(SHORT, steps=steps)).epsilon for steps in (1, 2, 3)]
    # PRV's mesh is that of three steps at every point, finer than those of one and two
    assert curve.epsilons == pytest.approx(expected, abs=1e-5)
    assert curve.epsilons[-1] == expected[-1]
    assert (curve.steps, curve.accountants) == ((1, 2, 3), ("prv",) * 3)


def test_where_an_accountant_fails_the_next_bounds_the_step(answering):
    answering(prv=0, pld=2)
    curve = epsilon_curve(SHORT, "prv")
    assert (curve.epsilons, curve.accountants) == ((0.01, 0.02, 0.03), ("pld", "pld", "rdp"))
    answering(prv=0, pld=0, rdp=0)
    assert epsilon_curve(SHORT, "prv").steps == ()
