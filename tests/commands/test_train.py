"""A run up to its first step, as ``dpft train`` goes through it, and what of it is resumed."""

import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from dpft.commands import train as train_module
from dpft.commands.interrupted_run import check_same_base
from dpft.commands.train import train, train_run
from dpft.config.schema import TrainCommand, TrainConfig
from dpft.errors import InputError, StateError
from dpft.privacy.release_guard import digests_of
from dpft.run_folder import hold_run
from dpft.training import loop
from tests.commands.configs import with_privacy, with_train

KEPT = {
    *("config.yaml", "private/begun.json", "private/data_summary.md", "private/fingerprint"),
    *("private/held_out.key", "private/unit_key"),
}


class Stopped(Exception):
    """The loop was reached, and takes no step."""


@pytest.fixture
def at_loop(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Has the loop call a function, and stop."""

    def look(look_at: Callable[..., Any] = lambda *_: None) -> None:
        def stop(*given: Any) -> None:
            look_at(*given)
            raise Stopped

        monkeypatch.setattr(loop, "train", stop)

    look()
    return look


def before(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[..., Any]) -> None:
    """Has a function of ``dpft.commands.train`` call another one first."""
    function = getattr(train_module, name)

    def called(*args: Any, **kwargs: Any) -> Any:
        act(*args)
        return function(*args, **kwargs)

    monkeypatch.setattr(train_module, name, called)


def is_held(folder: Path) -> bool:
    try:
        with hold_run(folder):
            return False
    except InputError:
        return True


@pytest.mark.slow
def test_before_the_first_step_everything_is_written_that_resuming_needs(
    config: TrainConfig, tmp_path: Path, at_loop: Callable[..., Any]
) -> None:
    folder, seen = tmp_path / "run", []

    def look(*_: Any) -> None:
        assert is_held(folder), "no other process may train in it"
        seen.extend(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        private = [folder / name for name in KEPT if name.startswith("private")]
        assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}

    at_loop(look)
    origins: list[tuple[Path, bool]] = []
    composed: Any = SimpleNamespace(write_record=lambda at: origins.append((at, is_held(at))))
    with pytest.raises(Stopped):
        train_run(config, folder, composed=composed)
    assert set(seen) >= KEPT and any("checkpoints/step-00000000" in name for name in seen)
    assert origins == [(folder, True)]
    assert not is_held(folder)
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert saved["task"]["data_dir"] == config.task.data_dir
    assert not {"report.md", "privacy.json"} & {path.name for path in folder.iterdir()}


@pytest.mark.slow
def test_held_out_rows_are_never_trained_on_and_the_public_size_counts_them(
    config: TrainConfig,
    tmp_path: Path,
    at_loop: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A count of what is left would tell how many the secret key left out."""
    kept: list[str] = []
    held: list[str] = []
    runs: list[Any] = []
    at_loop(lambda state, training_set, engine, run: runs.append(run))
    before(
        monkeypatch,
        "make_training_set",
        lambda _, data, *__: kept.extend(example.prompt for example in data.examples),
    )
    before(
        monkeypatch,
        "score_stage",
        lambda *given: held.extend(example.prompt for example in given[3]["held_out"]),
    )
    with pytest.raises(Stopped):
        train_run(config, tmp_path / "run")
    assert kept and held and not set(held) & set(kept)
    assert len({*held, *kept}) == 40
    plan = runs[0].plan
    assert (plan.num_examples, plan.sample_rate) == (20, 2 / 20)


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
    with pytest.raises(InputError) as refusal:
        train_run(many.replace(task=long), tmp_path / "run")
    length, batch = refusal.value.faults
    assert "at most the model's 128 positions, got 512" in length.message
    assert "at most the 20 values of owner, got 1024" in batch.message
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_tokens_below_a_unit_are_refused_before_data_are_read(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_module, "load_training_data", None)
    with pytest.raises(InputError, match="at least 64, the tokens of a unit of 2 records"):
        train_run(with_train(config, micro_batch_tokens=63), tmp_path / "run")


def test_a_used_folder_is_refused_before_anything_is_read(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_module, "load_training_data", None)
    (tmp_path / "ledger.jsonl").write_text('{"step": 1}')
    with pytest.raises(InputError, match="has taken noisy steps"):
        train_run(config, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.jsonl"]


@pytest.mark.slow
def test_a_folder_used_while_the_run_was_prepared_is_refused_too(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"

    def use(*_: Any) -> None:
        folder.mkdir()
        (folder / "ledger.jsonl").write_text('{"step": 1}')

    before(monkeypatch, "make_training_set", use)
    with pytest.raises(InputError, match="has taken noisy steps"):
        train_run(config, folder)
    assert not (folder / "config.yaml").exists()


@pytest.mark.slow
def test_a_folder_that_another_process_holds_is_left_as_it_was(
    config: TrainConfig, tmp_path: Path
) -> None:
    with hold_run(tmp_path), pytest.raises(InputError, match="in use by another dpft process"):
        train_run(config, tmp_path)
    assert not (tmp_path / "config.yaml").exists()


@pytest.mark.slow
def test_a_crash_is_kept_for_the_owner(
    command: TrainCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: Any) -> None:
        raise ZeroDivisionError("Qzxmessage")

    before(monkeypatch, "make_training_set", crash)
    with pytest.raises(ZeroDivisionError):
        train(command, tmp_path / "run")
    assert "Qzxmessage" in (tmp_path / "run/private/traceback.txt").read_text()


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
    for edited, said in (
        ({"noise_seed": 1}, "reproducible"),
        ({"show_diagnostics": True}, "show_d"),
    ):
        with pytest.raises(InputError, match=f"must go on .* got another .*{said}"):
            train_run(with_privacy(config, **edited), folder, resumes=True)
        assert not {"report.md", "privacy.json"} & {path.name for path in folder.iterdir()}
    train_run(config, folder, resumes=True)
    assert (folder / "report.md").exists() and (folder / "privacy.json").exists()


def test_a_run_is_not_resumed_with_another_base() -> None:
    """The checkpoint has the frozen weights too; what is released is used with the base's."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    frozen = digests_of(model[:1])
    bound = SimpleNamespace(path=Path("step-2"), run=SimpleNamespace(frozen=frozen))
    point: Any = SimpleNamespace(checkpoint=bound)
    with torch.no_grad():
        model[1].weight.mul_(2)  # this one trains
        check_same_base(model, None, point)
        model[0].bias[0] += 2**-20
    with pytest.raises(StateError, match=r"step-2 is .* of another model: 0\.bias differs"):
        check_same_base(model, None, point)
    assert frozen, "there was something to compare"
