"""Whose curve of epsilon a run has, and what is said where it is another's."""

from types import SimpleNamespace
from typing import Any

import pytest

from dpft.privacy.accounting.calibration import Target, calibrate_noise_multiplier
from dpft.privacy.accounting.curve import EpsilonCurve, Failure
from dpft.records.ledger import Calibration
from dpft.runs.run_plan import (
    PublicSize,
    RunPlan,
    curve_beside,
    early_calibration,
    epsilon_so_far,
    finished_curve,
    plan_run,
    target_of,
    with_batch_size,
)
from tests.config.test_conf import loaded
from tests.privacy.test_plan import plan

FOUND = Calibration(accountant="rdp", epsilon=2.9, grid="orders")
SMALL = ("task=e2e", "task.source=embedded", "model=tiny", "privacy.eps=3")
CUSTOM = ("task=custom", 'task.text="{note}"', "model=tiny", "privacy.eps=8")


def never() -> int:
    pytest.fail("the rows were counted")


@pytest.mark.parametrize(
    "words",
    [
        ("experiment=demo",),
        (*SMALL, "train.steps=7", "privacy.delta=1e-6", "privacy.accountant=pld"),
        (*SMALL, "privacy.num_examples=10000"),
        (*SMALL, "method=two_phase", "train.epochs=2"),
        (*CUSTOM, "privacy.num_examples=3000"),
    ],
    ids=["demo", "steps", "number", "phases", "own data"],
)
def test_what_is_begun_with_is_what_the_plan_asks_for(words: tuple[str, ...]) -> None:
    config, asked = loaded("train", list(words)), []

    def calibrate(**target: Any) -> tuple[float, Calibration]:
        asked.append(Target(**target))
        return 1.0, FOUND

    plan_run(with_batch_size(config, never), never, calibrate)
    assert asked == [target_of(config)]


@pytest.mark.parametrize(
    "words",
    [
        (*CUSTOM, "task.data_dir=notes.csv"),
        (*SMALL, "train.expected_batch_size=100000"),
        (*SMALL, "train.transfer_sample_rate_from=sst2"),
    ],
    ids=["not counted", "refused later", "another task's rate"],
)
def test_nothing_is_begun_with_where_it_is_not_known(words: tuple[str, ...]) -> None:
    assert target_of(loaded("train", list(words))) is None


@pytest.mark.parametrize(
    "words",
    [("privacy=none",), ("privacy.noise_multiplier=1",)],
)
def test_a_run_without_a_target_starts_no_accountant(words: tuple[str, ...]) -> None:
    with early_calibration(loaded("train", [*SMALL[:-1], *words])) as calibrate:
        assert calibrate is calibrate_noise_multiplier


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
