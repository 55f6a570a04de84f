"""Epsilon after growing numbers of steps, computed at once, over a sweep, or beside a run."""

import math
import threading
from dataclasses import replace

import pytest

from dpft.errors import InputError
from dpft.privacy.accounting import curve, pld, rdp
from dpft.privacy.accounting.curve import (
    POINTS,
    CurveInBackground,
    EpsilonCurve,
    EpsilonSoFar,
    curve_grid,
    curve_of,
    epsilon_over_steps,
    failures,
    rdp_curve,
    step_grid,
)
from dpft.privacy.accounting.mechanism import (
    AccountantError,
    AccountantTimeout,
    Epsilon,
    SampledGaussian,
)
from dpft.privacy.accounting.summary import AccountingReport, account
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


RARE = SampledGaussian(noise_multiplier=1.5, sample_rate=0.01, steps=200, delta=1e-5)


class Fails:
    """Accountants that answer up to some numbers of steps."""

    def __init__(self, **limits):
        self.limits = limits

    def prefetch(self, name, mechanism, **options):
        pass

    def evaluate(self, name, mechanism, **options):
        if mechanism.steps > self.limits.get(name, 10**9):
            raise AccountantError(f"{mechanism.steps} steps are too many.")
        value = mechanism.steps / 100
        return Epsilon(lower=value, estimate=value, upper=None if name == "gdp" else value)


@pytest.mark.parametrize("steps", [1, 2, 15, 16, 17, 410, 10**6])
def test_the_grid_goes_from_one_step_to_all_in_at_most_seventeen_points(steps):
    grid = step_grid(steps)
    assert (grid[0], grid[-1]) == (1, steps)
    assert grid == sorted(set(grid))
    assert min(steps, 16) <= len(grid) <= 17


def test_epsilon_does_not_fall_as_steps_are_taken(accountants):
    few = replace(RARE, steps=6)
    reports = epsilon_over_steps(few, accountant="pld", accountants=accountants)
    epsilons = [report.epsilon for report in reports]
    assert epsilons == sorted(epsilons)
    assert reports[-1].mechanism == few
    assert failures(reports) == []


def test_where_an_accountant_fails_another_leads_and_the_steps_are_named():
    reports = epsilon_over_steps(RARE, accountant="prv", accountants=Fails(prv=175, pld=188))
    assert [report.accountant for report in reports[-3:]] == ["prv", "pld", "rdp"]
    prv, pld = failures(reports)
    assert (pld.accountant, pld.steps) == ("pld", (200,))
    assert (prv.accountant, prv.steps) == ("prv", (188, 200))
    assert prv.reason == "188 steps are too many."


def test_it_ends_where_no_accountant_goes_on_and_refuses_if_none_begins():
    reports = epsilon_over_steps(RARE, accountant="rdp", accountants=Fails(prv=50, pld=50, rdp=50))
    assert reports[-1].mechanism.steps == 50
    with pytest.raises(InputError, match="raise noise_multiplier"):
        epsilon_over_steps(RARE, accountant="rdp", accountants=Fails(prv=0, pld=0, rdp=0))


SHORT = SampledGaussian(noise_multiplier=1.5, sample_rate=0.25, steps=3, delta=1e-3)


class Answers:
    """Accountants in this process: three a step by RDP, one by all others, and some are late."""

    late: tuple[str, ...] = ()
    asked: list[tuple[str, int]]

    def __init__(self, limits):
        assert limits.niceness > 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def prefetch(self, name, mechanism, **options):
        pass

    def evaluate(self, name, mechanism, **options):
        self.asked.append((name, mechanism.steps))
        if name in self.late:
            raise AccountantTimeout("It timed out after 20 s of processor time.")
        value = mechanism.steps * (3.0 if name == "rdp" else 1.0)
        return Epsilon(lower=value, estimate=value, upper=None if name == "gdp" else value)


@pytest.fixture
def answers(monkeypatch):
    """Returns a function that lets the background ask these, some of them late."""

    def use(*late):
        own = type("Own", (Answers,), {"late": late, "asked": []})
        monkeypatch.setattr(curve, "Accountants", own)
        return own.asked

    return use


def curve_by(accountant, mechanism=SHORT):
    with CurveInBackground(mechanism, accountant) as beside:
        return beside.wait(), beside.failures


def test_every_point_is_what_is_reported_of_so_many_steps(accountants, shared_accounting):
    curve, failures = curve_by("prv")
    expected = [
        account(replace(SHORT, steps=steps), accountants=accountants).epsilon for steps in (1, 2, 3)
    ]
    # PRV's mesh is that of three steps at every point, finer than those of one and two
    assert curve.epsilons == pytest.approx(expected, abs=1e-5)
    assert curve.epsilons[-1] == expected[-1]
    assert (curve.steps, curve.accountants) == ((1, 2, 3), ("prv",) * 3)
    assert failures == []
    assert curve_by("prv")[0] == curve, "a run that goes on has the same curve"


def test_an_accountant_that_times_out_is_asked_once_and_the_next_stands_for_it(answers):
    asked = answers("prv")
    curve, failures = curve_by("prv")
    assert curve == EpsilonCurve(
        steps=(1, 2, 3), epsilons=(1.0, 2.0, 3.0), accountants=("pld",) * 3
    )
    assert [one for one in asked if one[0] == "prv"] == [("prv", 1)]
    assert [(one.accountant, one.steps) for one in failures] == [("prv", (1, 2, 3))]
    assert "timed out" in failures[0].reason


def test_its_last_point_is_the_accounting_of_a_run_that_took_all_steps(
    answers, accountants, shared_accounting
):
    with CurveInBackground(SHORT, "prv") as beside:
        beside.wait()
    assert beside.report(SHORT, "prv") == account(SHORT, accountants=accountants)
    others = replace(SHORT, steps=2), replace(SHORT, noise_multiplier=SHORT.noise_multiplier * 2)
    assert [beside.report(other, "prv") for other in others] == [None, None]
    assert beside.report(SHORT, "pld") is None, "another bound would lead"
    answers("pld")
    with CurveInBackground(SHORT, "prv") as slow:
        slow.wait()
    assert slow.report(SHORT, "prv") is None, "one that had no time is asked again"


def test_where_all_others_time_out_the_curve_is_rdps(answers):
    asked = answers("prv", "pld")
    assert curve_by("prv")[0].accountants == ("rdp",) * 3
    assert [one for one in asked if one[0] == "pld"] == [("pld", 1)]


def test_where_none_bounds_a_step_it_is_rdps_own_in_this_process(answers):
    answers("prv", "pld", "rdp")
    assert curve_by("prv")[0] == rdp_curve(SHORT)


def test_by_rdp_nothing_runs_beside_the_block(answers):
    asked = answers()
    assert curve_by("rdp")[0] == rdp_curve(SHORT)
    assert asked == []


def test_a_block_that_breaks_off_ends_the_work(answers, monkeypatch):
    answers()
    waits, goes_on = threading.Event(), threading.Event()

    def evaluate(*_, **__):
        waits.set()
        goes_on.wait(10)
        return Epsilon(lower=1.0, estimate=1.0, upper=1.0)

    monkeypatch.setattr(curve.Accountants, "evaluate", evaluate)
    beside = CurveInBackground(SHORT, "prv")
    with pytest.raises(KeyboardInterrupt), beside:
        assert waits.wait(10) and beside.curve is None
        threading.Timer(0.05, goes_on.set).start()
        raise KeyboardInterrupt
    assert beside.curve is None
    assert "epsilon over steps" not in [thread.name for thread in threading.enumerate()]
