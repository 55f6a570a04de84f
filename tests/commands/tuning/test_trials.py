"""A trial is an ordinary private run under the search's noise, and nobody hears it."""

import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpft.commands import tune as tuning
from dpft.commands.run_plan import RunPlan, plan_run
from dpft.commands.tune import Trial, run_trial
from dpft.config.tune import TuneCommand
from dpft.errors import DpftError, InputError, StateError
from tests.commands.tuning.test_search import SEARCH
from tests.config.test_tune import command
from tests.rejections import rejects

(TRIAL,) = SEARCH.trials


@pytest.fixture(scope="module")
def tune() -> TuneCommand:
    return command("task=e2e", "privacy.delta=1e-5", "train.steps=3")


@pytest.fixture
def tuning_folder(tmp_path: Path) -> Path:
    (tmp_path / "tuning").mkdir()
    return tmp_path / "tuning"


def beginning(monkeypatch: pytest.MonkeyPatch, what: Callable[..., Any]) -> None:
    """Make ``what`` of the configuration, folder and plan the training of a trial."""

    def train(config: Any, folder: Path, *, with_curve: bool, **given: Any) -> None:
        assert not with_curve, "its own steps are not what was spent"
        what(config, folder, given)

    monkeypatch.setattr(tuning, "train_run", train)


@pytest.mark.slow
def test_a_trial_has_its_setting_its_own_noise_and_the_searchs_calibration(
    tune: TuneCommand, tuning_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed: Any = SimpleNamespace(write_record=lambda _: None)

    planned: list[RunPlan] = []

    def begin(config: Any, folder: Path, given: Any) -> None:
        assert (folder, given.pop("composed")) == (tuning_folder / "trial-0", composed)
        assert not given.pop("resumes")
        assert config.train.learning_rate == TRIAL.setting["train.learning_rate"] == 0.1
        planned.append(plan_run(config, lambda: pytest.fail("the size is published"), **given))

    beginning(monkeypatch, begin)
    assert run_trial(tune, SEARCH, TRIAL, tuning_folder / "trial-0", composed) == 0
    (plan,) = planned
    assert plan.privacy is not None and plan.steps == 3
    assert plan.privacy.noise_multiplier == TRIAL.noise_multiplier == 1.5
    assert plan.privacy.calibration == SEARCH.calibration, "of the search, never of the one trial"


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", [InputError("model.path must be trial 3's."), StateError("trial 3 is broken.")]
)
def test_a_trial_that_could_not_run_stops_the_search_without_being_named(
    tune: TuneCommand,
    tuning_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: DpftError,
) -> None:
    def begin(*_: Any) -> None:
        raise error

    beginning(monkeypatch, begin)
    with pytest.raises(type(error), match=str(tuning_folder)) as info:
        run_trial(tune, SEARCH, TRIAL, tuning_folder / "trial-3")
    assert "trial-3" not in str(info.value) and "trial 3" not in str(info.value)


@pytest.mark.slow
def test_a_full_disk_is_no_trials_own_failure(
    tune: TuneCommand, tuning_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(_: Any, folder: Path, *__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder / "x"))

    beginning(monkeypatch, begin)
    with pytest.raises(OSError, match="No space") as info:
        run_trial(tune, SEARCH, TRIAL, tuning_folder / "trial-3")
    assert info.value.filename == str(tuning_folder)


@pytest.mark.slow
def test_a_setting_that_does_not_fit_is_refused_before_anything_is_begun(
    tune: TuneCommand, tuning_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beginning(monkeypatch, lambda *_: pytest.fail("it was begun"))
    odd = Trial(setting={"method.rank": 4}, noise_multiplier=1.0)
    with rejects(str(tuning_folder)):
        run_trial(tune, SEARCH, odd, tuning_folder / "trial-0")
    assert "method.rank" in (tuning_folder / "trial-0/log").read_text()
