import math
from dataclasses import replace

import pytest

from dpft.privacy.accounting import pld, rdp
from dpft.privacy.accounting.curve import (
    POINTS,
    EpsilonCurve,
    EpsilonSoFar,
    curve_grid,
    curve_of,
    rdp_curve,
)
from dpft.privacy.accounting.mechanism import AccountantError, Epsilon, SampledGaussian
from dpft.privacy.accounting.summary import AccountingReport
from dpft.records.ledger import Calibration
from tests.privacy.test_plan import plan

MECHANISM = SampledGaussian(noise_multiplier=1.5, sample_rate=0.25, steps=100, delta=1e-3)
CURVE = EpsilonCurve(steps=(1, 10, 100), epsilons=(0.5, 1.5, 4.0), accountants=("prv",) * 3)


def bound(steps: int) -> float:
    return rdp.epsilon(replace(MECHANISM, steps=steps)).upper


@pytest.mark.parametrize("steps", [1, 2, 39, 40, 41, 410, 10**6])
def test_the_grid_goes_from_one_step_to_all_in_at_most_forty_points(steps):
    grid = curve_grid(steps)
    assert (grid[0], grid[-1]) == (1, steps)
    assert grid == sorted(set(grid))
    assert min(steps, 24) <= len(grid) <= POINTS


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
    def report(steps: int, epsilon: float, accountant: str) -> AccountingReport:
        return AccountingReport(
            mechanism=replace(MECHANISM, steps=steps), epsilon=epsilon, delta=1e-3,
            accountant=accountant, epsilons={},
        )  # fmt: skip

    curve = curve_of([report(1, 0.5, "prv"), report(2, 3.0, "rdp"), report(3, 1.0, "pld")])
    assert curve == EpsilonCurve(
        steps=(1, 2, 3), epsilons=(0.5, 1.0, 1.0), accountants=("prv", "pld", "pld")
    )


@pytest.mark.parametrize("steps", [1, 45, 100])
def test_until_the_curve_is_there_it_is_rdps_bound_and_not_settled(steps):
    spent = EpsilonSoFar(plan(steps=100))(steps)
    assert spent.epsilon == pytest.approx(bound(steps), rel=1e-12)
    assert (spent.accountant, spent.settled) == ("rdp", False)


def test_once_the_curve_is_there_it_is_what_is_spent():
    found = [None]
    so_far = EpsilonSoFar(plan(steps=100), lambda: found[-1])
    assert not so_far(11).settled
    found.append(CURVE)
    spent = so_far(11)
    assert (spent.epsilon, spent.accountant, spent.settled) == (4.0, "prv", True)
    assert so_far(0).epsilon == 0


def test_where_rdp_is_the_runs_accountant_its_bound_is_the_last_word():
    spent = EpsilonSoFar(plan(steps=100), by_rdp=True)(45)
    assert spent.epsilon == pytest.approx(bound(45), rel=1e-12)
    assert (spent.accountant, spent.settled) == ("rdp", True)


def test_the_whole_plans_bound_covers_every_prefix():
    whole = Calibration(accountant="pld", epsilon=0.1, grid="")
    so_far = EpsilonSoFar(plan(steps=4, calibration=whole))
    assert (so_far(4).epsilon, so_far(4).accountant) == (0.1, "pld")
    assert so_far(3).epsilon <= 0.1
    assert so_far(0).epsilon == 0


@pytest.mark.parametrize("curve", [None, CURVE])
@pytest.mark.parametrize("steps", [101, 123])
def test_steps_beyond_the_plan_are_bounded_too(steps, curve):
    """A resume that draws new noise takes steps again, and every one of them counts."""
    whole = Calibration(accountant="pld", epsilon=0.1, grid="")
    so_far = EpsilonSoFar(plan(steps=100, calibration=whole), lambda: curve)
    assert so_far(steps).epsilon == pytest.approx(bound(steps), rel=1e-12)


def test_rdps_curve_has_no_point_that_rdp_cannot_bound(monkeypatch):
    assert rdp_curve(MECHANISM).epsilons[-1] == bound(100)

    def fails_from_two_steps_on(mechanism: SampledGaussian) -> Epsilon:
        if mechanism.steps > 1:
            raise AccountantError("It gives no finite upper value.")
        return Epsilon(upper=0.5)

    monkeypatch.setattr(rdp, "epsilon", fails_from_two_steps_on)
    only = EpsilonCurve(steps=(1,), epsilons=(0.5,), accountants=("rdp",))
    assert rdp_curve(MECHANISM) == only
    assert math.isinf(EpsilonSoFar(plan())(2).epsilon)
