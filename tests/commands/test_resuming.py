"""A run that goes on is bound to what it was begun with; what changes speed alone may change."""

import json
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpft.commands.interrupted_run import (
    MAY_CHANGE,
    SECTIONS,
    check_same_records,
    has_scores,
    hint_of_resume,
    read_secrets,
    restored_plan,
    resumed_configuration,
)
from dpft.commands.new_run import Secrets, fingerprint_text
from dpft.commands.run_plan import plan_run
from dpft.commands.splits import (
    Division,
)
from dpft.config.load import dump, plain
from dpft.config.schema import TrainConfig
from dpft.data.raw_rows import rows_in_memory
from dpft.errors import InputError, StateError
from dpft.privacy.accounting.calibration import Calibration
from dpft.privacy.privacy_config import NoPrivacy
from dpft.reports.run_record import write_metrics
from dpft.run_folder import (
    AUDIT_KEY,
    FINGERPRINT,
    HELD_OUT_KEY,
    UNIT_KEY,
    private_path,
    write_private,
)
from dpft.strict_model import as_json, parse
from dpft.training.checkpoint import BoundRun, Checkpoint, ResumePoint
from tests.commands.configs import settings, with_privacy
from tests.config.test_conf import loaded
from tests.reports.test_report import entry
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
        with pytest.raises(InputError, match=f"so {key} cannot change; besides eval, decode"):
            resumed_configuration(str(folder), other, given)


@pytest.mark.slow
def test_a_run_without_privacy_has_no_key_of_it_to_change(
    tmp_path: Path, other: Mapping[str, Any]
) -> None:
    dump(settings("task=e2e", "privacy=none"), tmp_path / "config.yaml")
    with pytest.raises(InputError, match="without privacy, which has no privacy.engine"):
        resumed_configuration(str(tmp_path), other, ["privacy.engine"])


def test_what_is_no_run_is_refused_with_the_way_out(
    tmp_path: Path, other: Mapping[str, Any]
) -> None:
    with pytest.raises(InputError, match=r"has no config\.yaml; give the folder"):
        resumed_configuration(str(tmp_path), other, [])
    (tmp_path / "private/tuning").mkdir(parents=True)
    with pytest.raises(InputError, match="of dpft tune; go on with it by dpft tune resume="):
        resumed_configuration(str(tmp_path), other, [])


def test_trust_rule_11_a_received_folder_runs_no_program_and_has_no_link(
    folder: Path, other: Mapping[str, Any]
) -> None:
    path = folder / "config.yaml"
    received = yaml.safe_load(path.read_text())
    received["privacy"]["witness"] = ["touch", "executed"]  # a key of earlier versions
    path.write_text(yaml.safe_dump(received))
    assert "witness" not in plain(resumed_configuration(str(folder), other, []))["privacy"]
    (folder / "link").symlink_to(folder)
    with pytest.raises(InputError, match="symbolic link"):
        resumed_configuration(str(folder), other, [])


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
    with pytest.raises(InputError, match="must go on with privacy.eps=3, which .*, got 8.0"):
        restored_plan(with_privacy(asked, eps=8.0), began, never)


def test_a_noise_multiplier_that_was_edited_is_refused(config: TrainConfig) -> None:
    with pytest.raises(InputError, match="must go on with privacy.noise_multiplier=1, which"):
        restored_plan(with_privacy(config, noise_multiplier=1.25), bound(config), never)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_grad_norm": 0.7}, "another phases;"),
        ({"delta": 1e-9}, "another delta, delta_source;"),
        ({"num_examples": 30000}, "another delta, num_examples, sample_rate;"),
    ],
)
def test_trust_rule_9_a_configuration_that_was_edited_is_refused(
    config: TrainConfig, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError, match=f"got {named}.* put config.yaml and the records back"):
        restored_plan(with_privacy(config, **changes), bound(config), never)


@pytest.mark.parametrize(
    ("began", "edited", "named"),
    [
        (None, 0.5, r"draws and the clipping .* others \(privacy.max_grad_norm=0.5\)"),
        (0.5, None, r"others \(privacy.max_grad_norm=None\)"),
        (0.5, 0.7, r"others \(privacy.max_grad_norm=0.7\)"),
        ("dp", None, "privacy=dp, as the run began, got none"),
        ("dp", 0.5, "privacy=dp, as the run began, got none"),
        (None, "dp", "privacy=none, as the run began, got dp"),
        (0.5, "dp", "privacy=none, as the run began, got dp"),
    ],
)
def test_trust_rule_9_a_run_goes_on_with_noise_or_clipping_as_it_began(
    config: TrainConfig, began: Any, edited: Any, named: str
) -> None:
    def having(what: Any) -> TrainConfig:
        if what == "dp":
            return config
        return config.replace(privacy=NoPrivacy(name="none", max_grad_norm=what))

    def stood(what: Any) -> ResumePoint:
        plan = plan_run(having(what), never)
        return bound_to(BoundRun(plan=plan.privacy, clipping=plan.unnoised))

    assert restored_plan(having(began), stood(began), never) == plan_run(having(began), never)
    with pytest.raises(InputError, match=f"{named}.* put config.yaml"):
        restored_plan(having(edited), stood(began), never)


def test_secrets_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert read_secrets(tmp_path) == Secrets(unit_key=b"", held_out_key=None, audit_key=b"")
    division = Division(kept=[0], scored={}, key=b"h" * 32, fingerprint="f")
    keys = {UNIT_KEY: 32 * b"u", AUDIT_KEY: 32 * b"a"}
    texts = {name: f"{key.hex()}\n" for name, key in keys.items()}
    write_private(tmp_path, {**texts, HELD_OUT_KEY: division.key_text})
    secrets = read_secrets(tmp_path)
    read = (secrets.unit_key, secrets.held_out_key, secrets.audit_key)
    assert read == (b"u" * 32, b"h" * 32, b"a" * 32)
    (tmp_path / UNIT_KEY).write_text("no key")
    with pytest.raises(StateError, match="unit_key is damaged: it must hold a key"):
        read_secrets(tmp_path)


def test_trust_rule_9_other_records_or_another_order_are_refused(tmp_path: Path) -> None:
    records = training_set()
    write_private(tmp_path, {FINGERPRINT: fingerprint_text(records)})
    check_same_records(tmp_path, records)
    grouped = replace(records, units=[[number] for number in range(12)])
    for others in (records.examples[::-1], records.examples[1:]):
        with pytest.raises(InputError, match="the training records that the run began with"):
            check_same_records(tmp_path, replace(records, examples=others))
    with pytest.raises(InputError, match="the training records that the run began with"):
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


@pytest.mark.parametrize("content", ["", "{}", '{"key": "xy", "hmac": "00"}', "[" * 5000])
def test_a_damaged_fingerprint_is_refused(tmp_path: Path, content: str) -> None:
    private_path(tmp_path, FINGERPRINT).write_text(content)
    with pytest.raises(StateError, match="fingerprint cannot be read"):
        check_same_records(tmp_path, training_set())


def test_scores_are_of_the_stage_that_was_asked_for(tmp_path: Path) -> None:
    assert not has_scores(tmp_path, "before")
    write_metrics(tmp_path, [entry("before", 1.0)], public=True)
    assert has_scores(tmp_path, "before") and not has_scores(tmp_path, "after")


def test_private_scores_that_are_gone_are_computed_again(tmp_path: Path) -> None:
    write_metrics(tmp_path, [entry("before", 1.0)], public=False)
    assert has_scores(tmp_path, "before")
    (tmp_path / "private" / "metrics.json").unlink()
    assert not has_scores(tmp_path, "before")


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
    assert capsys.readouterr().err.removeprefix("dpft: to go on: ") == said


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
    assert capsys.readouterr().err == ("dpft: to go on: dpft.train(['resume=run'], rows=...)\n")
