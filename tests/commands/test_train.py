"""A run up to its first step, as ``dpft train`` goes through it, and what of it is resumed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpft.commands import train as train_module
from dpft.commands.train import train_run
from dpft.config.schema import TrainConfig
from dpft.errors import InputError, StateError
from dpft.training import loop
from tests.commands.configs import with_privacy, with_train
from tests.rejections import rejects


class Stopped(Exception):
    """The loop was reached, and takes no step."""


@pytest.fixture
def at_loop(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Have the loop call a function, and stop."""

    def look(look_at: Callable[..., Any] = lambda *_: None) -> None:
        def stop(*given: Any) -> None:
            look_at(*given)
            raise Stopped

        monkeypatch.setattr(loop, "train", stop)

    look()
    return look


def before(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[..., Any]) -> None:
    """Have a function of ``dpft.commands.train`` call another one first."""
    function = getattr(train_module, name)

    def called(*args: Any, **kwargs: Any) -> Any:
        act(*args)
        return function(*args, **kwargs)

    monkeypatch.setattr(train_module, name, called)


@pytest.mark.slow
def test_the_configuration_and_the_records_have_the_number_that_auto_stands_for(
    config: TrainConfig,
    tmp_path: Path,
    at_loop: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {"micro_batch_size": "auto", "micro_batch_tokens": 64, "pad_to_multiple_of": 8}
    sets: list[Any] = []
    scored: list[int] = []
    at_loop(lambda state, training_set, engine, run: sets.append(training_set))
    before(
        monkeypatch, "score_stage", lambda *given: scored.append(given[2].layout.pad_to_multiple_of)
    )
    with pytest.raises(Stopped):
        train_run(with_train(config, **limits), tmp_path / "run")
    saved = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert saved["train"]["micro_batch_size"] == sets[0].micro_batch_size == 4
    assert sets[0].micro_batch_tokens == 64
    layout = sets[0].layout
    assert (layout.pad_to_multiple_of, layout.max_length) == (8, 32)
    assert scored == [1], "what is scored is padded as ever"


@pytest.mark.slow
def test_a_length_and_a_batch_that_do_not_fit_are_reported_together(
    config: TrainConfig, tmp_path: Path
) -> None:
    long = config.task.replace(max_length=512)
    many = with_train(config, expected_batch_size=1024)
    with rejects() as faults:
        train_run(many.replace(task=long), tmp_path / "run")
    assert [(fault.key, fault.value) for fault in faults] == [
        ("task.max_length", 512),
        ("train.expected_batch_size", 1024),
    ]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_folder_used_while_the_run_was_prepared_is_refused_too(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"

    def use(*_: Any) -> None:
        folder.mkdir()
        (folder / "ledger.jsonl").write_text('{"step": 1}')

    before(monkeypatch, "make_training_set", use)
    with rejects("hydra.run.dir", str(folder)):
        train_run(config, folder)
    assert not (folder / "config.yaml").exists()


@pytest.mark.slow
def test_a_resumed_run_keeps_the_scores_before_training(
    config: TrainConfig,
    tmp_path: Path,
    at_loop: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stages: list[str] = []
    before(monkeypatch, "score_stage", lambda *given: stages.append(given[4]))
    for resumes in (False, True):
        with pytest.raises(Stopped):
            train_run(config, tmp_path / "run", resumes=resumes)
    assert stages == ["before"]


@pytest.mark.slow
def test_of_a_run_that_has_ended_only_its_secrets_are_deleted(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, secrets = tmp_path / "run", []

    def keep_keys(*_: Any) -> None:
        (keys,) = (folder / "private/checkpoints").glob("*/generators.json")
        secrets.append((keys, keys.read_bytes()))

    before(monkeypatch, "save_model", keep_keys)
    train_run(config, folder)
    ((keys, content),) = secrets
    assert not keys.exists()
    keys.write_bytes(content)  # as if the run had been killed before it deleted them
    files = {path: path.read_bytes() for path in folder.glob("*.*")}
    with monkeypatch.context() as patch:
        patch.setattr(train_module, "load_training_data", None)
        train_run(config, folder, resumes=True)
    assert not keys.exists()
    assert {path: path.read_bytes() for path in folder.glob("*.*")} == files
    shutil.rmtree(folder / "model")
    with pytest.raises(StateError):
        train_run(config, folder, resumes=True)


@pytest.mark.slow
def test_trust_rule_9_a_run_that_has_ended_is_reported_with_its_own_promise_only(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    train_run(config, folder)
    for name in ("report.md", "privacy.json"):
        (folder / name).unlink()  # as if the run had been killed before it was reported
    monkeypatch.setattr(loop, "train", None)
    for edited in ({"noise_seed": 1}, {"show_diagnostics": True}):
        with pytest.raises(InputError):
            train_run(with_privacy(config, **edited), folder, resumes=True)
        assert not {"report.md", "privacy.json"} & {path.name for path in folder.iterdir()}
    train_run(config, folder, resumes=True)
    assert (folder / "report.md").exists() and (folder / "privacy.json").exists()
