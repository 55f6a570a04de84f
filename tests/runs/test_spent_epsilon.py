"""Whose curve of epsilon a run has, and what is said where it is another's."""

from types import SimpleNamespace
from typing import Any

import pytest

from dpft.privacy.accounting.curve import EpsilonCurve
from dpft.privacy.accounting.over_steps import Failure
from dpft.records.ledger import Calibration
from dpft.runs.run_plan import PublicSize, RunPlan, curve_beside, epsilon_so_far, finished_curve
from tests.privacy.test_plan import plan

RDP = Calibration(accountant="rdp", epsilon=9.0, grid="")


def config(accountant: str = "prv") -> Any:
    return SimpleNamespace(
        privacy=SimpleNamespace(guarantee=SimpleNamespace(accountant=accountant))
    )


def run_plan(**changes: Any) -> RunPlan:
    size = PublicSize(num_examples=40, source="")
    return RunPlan(size=size, steps=3, phases=(), privacy=changes.get("privacy", plan()))


def test_a_run_without_privacy_and_a_trial_have_no_curve() -> None:
    with curve_beside(config(), run_plan(privacy=None)) as curve:
        assert curve is None and finished_curve(curve) is None
    with curve_beside(config(), run_plan(), wanted=False) as curve:
        assert curve is None


def test_a_run_that_rdp_calibrated_keeps_rdps_bound_whatever_is_configured() -> None:
    own = run_plan(privacy=plan(calibration=RDP))
    with curve_beside(config("prv"), own) as background:
        assert background is not None
        spent = epsilon_so_far(config("prv"), own.privacy, background)(2)  # type: ignore[arg-type]
        assert (spent.accountant, spent.settled) == ("rdp", True)
        curve = finished_curve(background)
    assert curve is not None and set(curve.accountants) == {"rdp"}


def test_another_accountants_curve_is_said_to_be_one_and_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    curve = EpsilonCurve(steps=(1, 2), epsilons=(1.0, 2.0), accountants=("rdp", "rdp"))
    why = [Failure(accountant="prv", reason="It timed out after 20 s.", steps=(1, 2))]
    background: Any = SimpleNamespace(wait=lambda: curve, accountant="prv", failures=why)
    assert finished_curve(background) is curve
    assert caplog.messages == [
        "the curve of epsilon over the steps has bounds by rdp; prv: It timed out after 20 s."
    ]
