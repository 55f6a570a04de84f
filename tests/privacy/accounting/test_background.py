import threading
from dataclasses import replace

import pytest

from dpft.privacy.accounting import background
from dpft.privacy.accounting.background import CurveInBackground
from dpft.privacy.accounting.curve import EpsilonCurve, rdp_curve
from dpft.privacy.accounting.mechanism import AccountantTimeout, Epsilon, SampledGaussian
from dpft.privacy.accounting.summary import account

MECHANISM = SampledGaussian(noise_multiplier=1.5, sample_rate=0.25, steps=3, delta=1e-3)


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
        monkeypatch.setattr(background, "Accountants", own)
        return own.asked

    return use


def curve_by(accountant, mechanism=MECHANISM):
    with CurveInBackground(mechanism, accountant) as beside:
        return beside.wait(), beside.failures


def test_every_point_is_what_is_reported_of_so_many_steps(accountants, shared_accounting):
    curve, failures = curve_by("prv")
    expected = [
        account(replace(MECHANISM, steps=steps), accountants=accountants).epsilon
        for steps in (1, 2, 3)
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


def test_where_all_others_time_out_the_curve_is_rdps(answers):
    asked = answers("prv", "pld")
    assert curve_by("prv")[0].accountants == ("rdp",) * 3
    assert [one for one in asked if one[0] == "pld"] == [("pld", 1)]


def test_where_none_bounds_a_step_it_is_rdps_own_in_this_process(answers):
    answers("prv", "pld", "rdp")
    assert curve_by("prv")[0] == rdp_curve(MECHANISM)


def test_by_rdp_nothing_runs_beside_the_block(answers):
    asked = answers()
    assert curve_by("rdp")[0] == rdp_curve(MECHANISM)
    assert asked == []


def test_a_block_that_breaks_off_ends_the_work(answers, monkeypatch):
    answers()
    waits, goes_on = threading.Event(), threading.Event()

    def evaluate(*_, **__):
        waits.set()
        goes_on.wait(10)
        return Epsilon(lower=1.0, estimate=1.0, upper=1.0)

    monkeypatch.setattr(background.Accountants, "evaluate", evaluate)
    beside = CurveInBackground(MECHANISM, "prv")
    with pytest.raises(KeyboardInterrupt), beside:
        assert waits.wait(10) and beside.curve is None
        threading.Timer(0.05, goes_on.set).start()
        raise KeyboardInterrupt
    assert beside.curve is None
    assert "epsilon over steps" not in [thread.name for thread in threading.enumerate()]
