"""A run that goes on is bound to what it was begun with; what changes speed alone may change."""

import json
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpft.commands.interrupted_run import (
    MAY_CHANGE,
    SECTIONS,
    check_same_records,
    hint_of_resume,
    restored_plan,
    resumed_configuration,
)
from dpft.commands.new_run import fingerprint_text
from dpft.commands.run_plan import plan_run
from dpft.config.load import dump, plain
from dpft.config.schema import TrainConfig
from dpft.data.raw_rows import rows_in_memory
from dpft.errors import StateError
from dpft.privacy.accounting.calibration import Calibration
from dpft.run_folder import (
    FINGERPRINT,
    write_private,
)
from dpft.strict_model import as_json, parse
from dpft.training.checkpoint import BoundRun, Checkpoint, ResumePoint
from tests.commands.configs import settings, with_privacy
from tests.config.test_conf import loaded
from tests.rejections import rejects
from tests.slowness import slow_but
from tests.training.toy import training_set

GIVEN = ["task=e2e", "privacy.noise_multiplier=1", "privacy.accountant=rdp", "train.steps=3"]


@pytest.fixture(scope="module")
def config() -> TrainConfig:
    return settings(*GIVEN)


@pytest.fixture(scope="module")
def other() -> Mapping[str, Any]:
    """What another command line composes to: every key of it differs where it can."""
    words = [*GIVEN, "train.learning_rate=9", "train.micro_batch_size=3"]
    values: dict[str, Any] = plain(loaded("train", words))
    values["eval"]["limit"], values["privacy"]["delta"] = 7, 1e-9
    return values


@pytest.fixture
def folder(tmp_path: Path, config: TrainConfig) -> Path:
    """A run's folder, as far as its configuration goes."""
    dump(config, tmp_path / "config.yaml")
    return tmp_path


def bound(config: TrainConfig, **changes: Any) -> ResumePoint:
    """Where a run stands whose checkpoint has the plan that the configuration makes."""
    plan = plan_run(config, never).privacy
    assert plan is not None
    return bound_to(BoundRun(plan=plan.replace(**changes)))


def bound_to(run: BoundRun) -> ResumePoint:
    saved = parse(as_json(run), BoundRun)
    return ResumePoint(checkpoint=Checkpoint(path=Path(), step=1, run=saved), ledger=None)


def never() -> int:
    pytest.fail("the rows were counted")


def test_a_run_goes_on_as_it_was_saved_but_for_what_may_change(
    folder: Path, config: TrainConfig, other: Mapping[str, Any]
) -> None:
    keys = ["resume", "train.micro_batch_size", "eval.limit"]
    command = resumed_configuration(str(folder), other, keys)
    assert command.resume == str(folder)
    assert command.settings() == config.replace(
        train=config.train.replace(micro_batch_size=3),
        eval=config.eval.replace(limit=7),
    )


@pytest.mark.slow
def test_every_key_that_may_change_is_taken(folder: Path, other: Mapping[str, Any]) -> None:
    keys = [key for key in MAY_CHANGE if key != "tracking"]
    resumed_configuration(str(folder), other, [*keys, "tracking"])
    for section in SECTIONS:
        for name in other[section]:
            resumed_configuration(str(folder), other, [f"{section}.{name}"])


@pytest.mark.parametrize(
    "key",
    [
        *("privacy.noise_multiplier", "privacy", "train.steps", "method", "eval"),
        *slow_but(
            [],
            [
                *("privacy.delta", "privacy.eps", "privacy.noise_seed", "privacy.unit"),
                *("privacy.self_check", "privacy.show_diagnostics", "train.learning_rate"),
                *("train.expected_batch_size", "train.seed", "method.rank", "task"),
                *("task.data_dir", "model.path", "optimizer.name", "scheduler.name", "experiment"),
            ],
        ),
    ],
)
def test_trust_rule_9_what_a_run_is_bound_to_cannot_change(
    folder: Path, other: Mapping[str, Any], key: str
) -> None:
    for given in ([key], ["resume", "eval.limit", key]):
        with rejects(key):
            resumed_configuration(str(folder), other, given)


@pytest.mark.slow
def test_a_run_without_privacy_has_no_key_of_it_to_change(
    tmp_path: Path, other: Mapping[str, Any]
) -> None:
    dump(settings("task=e2e", "privacy=none"), tmp_path / "config.yaml")
    with rejects("privacy.engine"):
        resumed_configuration(str(tmp_path), other, ["privacy.engine"])


def test_what_is_no_run_is_refused_with_the_way_out(
    tmp_path: Path, other: Mapping[str, Any]
) -> None:
    with rejects("resume", str(tmp_path)):
        resumed_configuration(str(tmp_path), other, [])
    (tmp_path / "private/tuning").mkdir(parents=True)
    with rejects("resume", str(tmp_path)) as faults:
        resumed_configuration(str(tmp_path), other, [])
    assert faults[0].hint == f"dpft tune resume={tmp_path}"


def test_the_noise_is_the_one_that_was_calibrated_then(config: TrainConfig) -> None:
    assert restored_plan(config, bound(config), never) == plan_run(config, never)
    chosen = with_privacy(config, noise_multiplier=1.25)
    calibration = Calibration(accountant="rdp", epsilon=2.9, grid="g", target=3.0)
    began = bound(chosen, calibration=calibration)
    asked = with_privacy(config, noise_multiplier=None, eps=3.0)
    plan = restored_plan(asked, began, never)
    assert plan.privacy is not None and plan.privacy.noise_multiplier == 1.25
    # as a search makes it, which knows what it is
    began = bound(chosen, calibration=calibration, is_trial=True)
    plan = restored_plan(asked, began, never)
    assert plan.privacy is not None and plan.privacy.is_trial
    with rejects("privacy.eps", "8.0"):
        restored_plan(with_privacy(asked, eps=8.0), began, never)


def test_trust_rule_9_other_records_or_another_order_are_refused(tmp_path: Path) -> None:
    records = training_set()
    write_private(tmp_path, {FINGERPRINT: fingerprint_text(records)})
    check_same_records(tmp_path, records)
    grouped = replace(records, units=[[number] for number in range(12)])
    for others in (records.examples[::-1], records.examples[1:]):
        with rejects("resume"):
            check_same_records(tmp_path, replace(records, examples=others))
    with rejects("resume"):
        check_same_records(tmp_path, grouped)


def test_a_fingerprint_is_the_owners_alone_and_says_nothing_without_its_key(
    tmp_path: Path,
) -> None:
    written = []
    for name in "ab":
        (tmp_path / name).mkdir()
        write_private(tmp_path / name, {FINGERPRINT: fingerprint_text(training_set())})
        path = tmp_path / name / FINGERPRINT
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        written.append(json.loads(path.read_text()))
    assert written[0]["key"] != written[1]["key"] and written[0]["hmac"] != written[1]["hmac"]


@pytest.mark.parametrize(
    ("made", "error", "said"),
    [
        ("private/checkpoints/step-00000000", KeyboardInterrupt, "dpft train resume=run\n"),
        ("private/checkpoints/step-00000000", OSError, "dpft train resume=run\n"),
        ("private/tuning", KeyboardInterrupt, "dpft tune resume=run\n"),
        ("private", KeyboardInterrupt, ""),
        ("private/checkpoints/step-00000000", StateError, ""),
    ],
)
def test_a_run_that_breaks_off_says_how_to_go_on_where_it_can(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    made: str,
    error: type[BaseException],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / made).mkdir(parents=True)
    with pytest.raises(error), hint_of_resume(tmp_path / "run"):
        raise error
    assert capsys.readouterr().err.removeprefix("dpft: to resume: ") == said


def test_a_run_on_rows_in_memory_says_that_they_are_needed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run/private/checkpoints/step-00000000").mkdir(parents=True)
    with (
        pytest.raises(OSError),
        rows_in_memory([{"note": "x"}]),
        hint_of_resume(tmp_path / "run"),
    ):
        raise OSError
    assert capsys.readouterr().err == ("dpft: to resume: dpft.train(['resume=run'], rows=...)\n")
