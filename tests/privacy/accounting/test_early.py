from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from dpft.errors import InputError, RunError
from dpft.privacy.accounting import early
from dpft.privacy.accounting.accountants import Accountants
from dpft.privacy.accounting.calibration import calibrate_noise_multiplier
from dpft.privacy.accounting.early import EarlyCalibration, Target
from dpft.privacy.accounting.limits import LimitedProcess
from dpft.privacy.accounting.mechanism import AccountantError, SampledGaussian
from dpft.records.ledger import Calibration

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

    monkeypatch.setattr(early, "calibrate_noise_multiplier", calibrate)
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

    monkeypatch.setattr(early, "calibrate_noise_multiplier", refuse)
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

    monkeypatch.setattr(early, "calibrate_noise_multiplier", calibrate)
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
