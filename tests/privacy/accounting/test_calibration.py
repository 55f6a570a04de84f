"""The noise of a target epsilon: published numbers, the search, and calibrations begun early."""

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpft.errors import InputError, RunError
from dpft.privacy.accounting import calibration as calibration_module
from dpft.privacy.accounting.accountants import Accountants, LimitedProcess
from dpft.privacy.accounting.calibration import (
    MAX_NOISE,
    TOLERANCE,
    EarlyCalibration,
    Target,
    calibrate_noise_multiplier,
    smallest_noise,
)
from dpft.privacy.accounting.mechanism import AccountantError, AccountantTimeout, SampledGaussian
from dpft.privacy.accounting.summary import account
from dpft.records.ledger import Calibration
from tests.slowness import slow

E2E = {"sample_rate": 1024 / 42061, "steps": 410, "delta": 1 / (2 * 42061)}


@pytest.mark.parametrize(
    ("eps", "published"),
    [(3, 1.0747), (8, 0.7116)],  # Li et al. 2022 on E2E: N = 42061, B = 1024, E = 10.
)
def test_rdp_reproduces_li(accountants, eps, published):
    noise_multiplier, calibration = calibrate_noise_multiplier(
        eps=eps, accountant="rdp", accountants=accountants, **E2E
    )
    assert noise_multiplier == pytest.approx(published, abs=1e-3)
    assert calibration.accountant == "rdp"


CIFAR = {"sample_rate": 1000 / 50_000, "delta": 1e-5}
CELEBA = {"sample_rate": 500 / 162_770, "delta": 5e-6, "steps": 3255}


@pytest.mark.parametrize(
    ("setting", "eps", "expected"),
    [
        (CIFAR | {"steps": 250}, 1, 1.57503),
        *slow(
            (CELEBA, 8, 0.536144),
            (CIFAR | {"steps": 250}, 2, 1.08340),
            (CIFAR | {"steps": 250}, 4, 0.815283),
            (CIFAR | {"steps": 250}, 8, 0.631628),
            (CIFAR | {"steps": 150}, 1, 1.38735),
            (CIFAR | {"steps": 150}, 2, 1.00946),
            (CIFAR | {"steps": 150}, 4, 0.770799),
            (CIFAR | {"steps": 150}, 8, 0.597379),
            (CELEBA, 3, 0.720139),
        ),
    ],
)
def test_the_image_recipes_have_the_noise_they_had(accountants, setting, eps, expected):
    """Bu et al. 2022, Table 11, of 5 and of 3 epochs; the paper gives no noise: a regression."""
    noise_multiplier, _ = calibrate_noise_multiplier(
        eps=eps, accountant="rdp", accountants=accountants, **setting
    )
    assert noise_multiplier == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("accountant", "eps", "setting"),
    [
        ("prv", 3, {}),
        ("rdp", 0.5, {}),
        ("pld", 0.01, {"sample_rate": 1, "steps": 100}),
        *slow(
            ("pld", 8, {}),
            ("prv", 0.05, {}),
            ("prv", 1, {"sample_rate": 1, "steps": 100}),
        ),
    ],
)
def test_the_report_gives_the_calibrated_epsilon_within_the_target(
    accountants, accountant, eps, setting
):
    setting = {**E2E, **setting}
    noise_multiplier, calibration = calibrate_noise_multiplier(
        eps=eps, accountant=accountant, accountants=accountants, **setting
    )
    mechanism = SampledGaussian(noise_multiplier=noise_multiplier, **setting)
    report = account(mechanism, accountant=accountant, accountants=accountants)
    assert calibration.accountant == report.accountant == accountant
    assert calibration.epsilon == report.epsilon
    assert eps - TOLERANCE <= report.epsilon <= eps


def test_less_noise_would_miss_the_target(accountants):
    setting = {**E2E, "steps": 20}
    noise_multiplier, _ = calibrate_noise_multiplier(
        eps=3, accountant="pld", accountants=accountants, **setting
    )
    less = SampledGaussian(noise_multiplier=0.999 * noise_multiplier, **setting)
    assert accountants.evaluate("pld", less).upper > 3


@pytest.mark.slow
def test_a_fresh_set_of_accountants_gives_the_same(accountants):
    shared = calibrate_noise_multiplier(eps=3, accountants=accountants, **E2E)
    assert calibrate_noise_multiplier(eps=3, **E2E) == shared


@pytest.mark.slow
def test_where_prv_fails_pld_calibrates_and_is_named(accountants):
    # PRV would need a mesh of millions of points.
    setting = {"sample_rate": 8192 / 5240387307, "steps": 30_000, "delta": 1e-9}
    noise_multiplier, calibration = calibrate_noise_multiplier(
        eps=8, accountants=accountants, **setting
    )
    assert calibration.accountant == "pld"
    assert 8 - TOLERANCE <= calibration.epsilon <= 8
    mechanism = SampledGaussian(noise_multiplier=noise_multiplier, **setting)
    report = account(mechanism, accountant="pld", accountants=accountants)
    assert report.epsilon == calibration.epsilon


def test_a_target_below_prvs_error_goes_to_pld(accountants):
    _, calibration = calibrate_noise_multiplier(eps=0.01, accountants=accountants, **E2E)
    assert (calibration.accountant, calibration.epsilon <= 0.01) == ("pld", True)


def test_where_rounding_defeats_pld_rdp_calibrates(accountants):
    _, calibration = calibrate_noise_multiplier(
        eps=3, delta=1e-12, sample_rate=0.1, steps=10**6, accountants=accountants
    )
    assert (calibration.accountant, calibration.epsilon <= 3) == ("rdp", True)


def test_noise_of_which_the_report_says_more_than_the_target_is_not_taken(accountants, monkeypatch):
    def says_more_by_rdp(mechanism, *, accountant, **options):
        report = account(mechanism, accountant=accountant, **options)
        return replace(report, epsilon=3.01) if accountant == "rdp" else report

    monkeypatch.setattr(calibration_module, "account", says_more_by_rdp)
    _, calibration = calibrate_noise_multiplier(
        eps=3, accountant="rdp", accountants=accountants, **E2E
    )
    assert calibration.accountant == "prv" and calibration.epsilon <= 3


@pytest.mark.parametrize("eps", [0, -1, math.inf, math.nan])
def test_an_impossible_target_is_refused_at_once(eps):
    with pytest.raises(InputError, match=f"privacy.eps must be .* got {eps}; privacy=none"):
        calibrate_noise_multiplier(eps=eps, **E2E)


def test_an_unattainable_target_is_one_sentence_with_a_way_out(accountants):
    with pytest.raises(InputError, match="privacy.eps=1e-09 is out of reach .* raise privacy.eps"):
        calibrate_noise_multiplier(
            eps=1e-9, delta=1e-30, sample_rate=1, steps=10**6, accountants=accountants
        )


def test_accountants_that_all_timed_out_say_so_and_what_to_do(accountants, monkeypatch):
    def late(name, mechanism, **options):
        raise AccountantTimeout("It timed out after 20 s of processor time.")

    monkeypatch.setattr(accountants, "evaluate", late)
    with pytest.raises(RunError) as raised:
        calibrate_noise_multiplier(eps=3, accountants=accountants, **E2E)
    assert raised.value.exit_code == 1
    assert "out of reach" not in str(raised.value)
    assert "rdp timed out" in str(raised.value)
    assert "choose another privacy.accountant" in str(raised.value)


def test_gdp_may_not_calibrate():
    with pytest.raises(InputError, match="gdp is an estimate"):
        calibrate_noise_multiplier(eps=3, accountant="gdp", **E2E)


class Counted:
    """A curve that remembers where it was evaluated."""

    def __init__(self, curve):
        self.curve, self.seen = curve, {}

    def __call__(self, noise_multiplier):
        self.seen[noise_multiplier] = self.curve(noise_multiplier)
        return self.seen[noise_multiplier]


@settings(deadline=None, max_examples=60)
@given(
    eps=st.floats(1e-3, 100),
    power=st.floats(0.8, 4),
    scale=st.floats(0.1, 100),
    start=st.floats(0.05, 1e4),
)
def test_finds_the_edge_and_never_passes_it(eps, power, scale, start):
    curve = Counted(lambda noise: (scale / noise) ** power)
    exact = scale / eps ** (1 / power)
    if not 0.03 < exact < MAX_NOISE / 2:
        return
    noise = smallest_noise(curve, eps, start=start)
    assert curve.seen[noise] <= eps
    assert noise == pytest.approx(exact, rel=2e-3)
    assert float(f"{noise:.6g}") == noise
    assert len(curve.seen) < 40


def test_few_evaluations_from_a_good_start():
    curve = Counted(lambda noise: 3 / noise**2)
    smallest_noise(curve, 3, start=1.05)
    assert len(curve.seen) <= 5


def test_a_start_within_tolerance_is_the_answer():
    curve = Counted(lambda noise: 3 / noise)
    assert smallest_noise(curve, 3, start=1.0001) == 1.0001
    assert len(curve.seen) == 1


def test_a_step_in_the_curve_ends_at_its_upper_edge():
    noise = smallest_noise(lambda noise: 5.0 if noise < 2 else 0.0, 3, start=1)
    assert noise == pytest.approx(2, rel=1e-4)
    assert noise >= 2


def test_ripples_do_not_break_the_guarantee():
    curve = Counted(lambda noise: 8 / noise**3 * (1 + 1e-3 * (int(noise * 1e5) % 2)))
    assert curve.seen.get(smallest_noise(curve, 8, start=2), 9) <= 8


def test_targets_out_of_reach_are_declined_with_the_way_out():
    with pytest.raises(AccountantError, match="raise privacy.eps"):
        smallest_noise(lambda noise: 1.0, 0.5, start=1)
    with pytest.raises(AccountantError, match="lower privacy.eps"):
        smallest_noise(lambda noise: 1.0, 2.0, start=1)


TARGET = Target(eps=3.0, delta=1e-5, sample_rate=0.1, steps=4, accountant="rdp")
OTHER = Target(eps=8.0, delta=1e-5, sample_rate=0.1, steps=4, accountant="rdp")
MECHANISM = SampledGaussian(noise_multiplier=2, sample_rate=0.1, steps=4, delta=1e-5)
FOUND = Calibration(accountant="rdp", epsilon=2.9, grid="orders")


@pytest.fixture
def calibrated(monkeypatch: pytest.MonkeyPatch) -> list[Target]:
    """The targets that were calibrated for, by a stand-in of the accountants."""
    asked: list[Target] = []

    def calibrate(*, accountants: Any = None, **target: Any) -> tuple[float, Calibration]:
        asked.append(Target(**target))
        return target["eps"] / 2, FOUND

    monkeypatch.setattr(calibration_module, "calibrate_noise_multiplier", calibrate)
    return asked


def test_what_was_begun_is_not_calibrated_again(calibrated: list[Target]) -> None:
    with EarlyCalibration(TARGET) as calibrate:
        assert calibrate(**asdict(TARGET)) == (1.5, FOUND)
    assert calibrated == [TARGET]


@pytest.mark.parametrize("begun", [None, TARGET])
def test_another_target_is_calibrated_for_itself(
    begun: Target | None, calibrated: list[Target]
) -> None:
    with EarlyCalibration(begun) as calibrate:
        assert calibrate(**asdict(OTHER)) == (4.0, FOUND)
    assert calibrated[-1] == OTHER


@pytest.mark.parametrize("error", [InputError("out of reach"), RunError("timed out")])
def test_an_error_is_raised_where_the_plan_asks(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise error

    monkeypatch.setattr(calibration_module, "calibrate_noise_multiplier", refuse)
    with EarlyCalibration(TARGET) as calibrate, pytest.raises(type(error)) as raised:
        calibrate(**asdict(TARGET))
    assert raised.value is error


def test_a_run_that_is_refused_meanwhile_waits_for_no_accountant(
    monkeypatch: pytest.MonkeyPatch, worker: Callable[[str], None]
) -> None:
    worker("import sys, time\nsys.stdin.readline()\ntime.sleep(60)")
    entered, ended = Event(), Event()

    def calibrate(*, accountants: Any, **target: Any) -> tuple[float, Calibration]:
        entered.set()
        try:
            return calibrate_noise_multiplier(accountants=accountants, **target)
        finally:
            ended.set()

    monkeypatch.setattr(calibration_module, "calibrate_noise_multiplier", calibrate)
    with pytest.raises(InputError, match="no such file"), EarlyCalibration(TARGET) as calibration:
        assert entered.wait(10)
        raise InputError("no such file")
    assert ended.is_set()
    assert all(p._process is None for p in calibration._accountants._processes.values())


def test_abandoned_accountants_answer_nothing(worker: Callable[[str], None]) -> None:
    worker("import sys\nfor line in sys.stdin: print(line, end='', flush=True)")
    with Accountants() as accountants:
        accountants.abandon()
        with pytest.raises(AccountantError, match="not waited for"):
            accountants.evaluate("rdp", MECHANISM)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a program's text in the place of the accountants' own."""

    def make(program: str) -> None:
        (tmp_path / "stand_in.py").write_text(program)
        monkeypatch.syspath_prepend(str(tmp_path))
        defaults = {"module": "stand_in"}
        monkeypatch.setattr(LimitedProcess.__init__, "__kwdefaults__", defaults)

    return make
