"""In which order a run goes from hand to hand, and what is there before a step is taken."""

import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from dpft.config.schema import TrainCommand, TrainConfig
from dpft.errors import InputError, RunError, StateError
from dpft.files import hold_run
from dpft.privacy.frozen_state import digests_of
from dpft.runs import run as runs
from dpft.runs.folder import Secrets
from dpft.runs.prepared_run import Prepared
from dpft.runs.run import begin, finish, go_on, run, same_base
from dpft.training.checkpoint import BoundRun

KEPT = (
    *("config.yaml", "private/begun.json", "private/data_summary.md", "private/fingerprint"),
    *("private/held_out.key", "private/unit_key"),
)

ENDED = SimpleNamespace(ledger=None, checkpoint=SimpleNamespace(step=1))
"""Where a run stands that has ended."""


class Calls(list[str]):
    """The hand-overs of a run in their order; each but the first few only takes note of itself."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.folder, self._patch = folder, patch

    def note(self, *names: str, **returned: Any) -> None:
        """Has functions of ``dpft.runs.run`` take note that they were called, and do nothing."""
        for name in (*names, *returned):
            self._patch.setattr(runs, name, self._noting(name, returned.get(name)))

    def _noting(self, name: str, returned: Any) -> Any:
        def called(*_: Any, **__: Any) -> Any:
            self.append(name)
            return returned

        return called


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared: Prepared) -> Iterator[Calls]:
    """Every hand-over of a run noted, none of them carried out."""
    noted = Calls(tmp_path / "run", monkeypatch)
    noted.note("train", "write_scores", "report")
    noted.note(prepare=prepared, score=[], not_evaluated=[], find_resume_point=ENDED)
    noted.note(read_run_ledger=ENDED.ledger)
    yield noted


def is_held(folder: Path) -> bool:
    try:
        with hold_run(folder):
            return False
    except InputError:
        return True


def test_a_run_goes_from_hand_to_hand(calls: Calls, config: TrainConfig) -> None:
    begin(config, calls.folder, write_request=lambda _: calls.append("write_request"))
    assert calls == [
        "prepare", "write_request", "score", "write_scores", "train", "score", "not_evaluated",
        "read_run_ledger", "report",
    ]  # fmt: skip


def test_before_the_first_step_all_is_there_that_a_run_goes_on_by(
    calls: Calls, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def train(_: Any, folder: Path, *__: Any, **___: Any) -> None:
        assert is_held(folder), "no other process may train in it"
        names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
        seen.append(sorted({*names} - {"private/lock"}))
        private = [folder / name for name in KEPT if name.startswith("private")]
        assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}

    monkeypatch.setattr(runs, "train", train)
    begin(config, calls.folder)
    assert seen == [sorted(KEPT)]
    assert not is_held(calls.folder)
    saved = yaml.safe_load((calls.folder / "config.yaml").read_text())
    assert saved["task"]["data_dir"] == config.task.data_dir


def test_a_run_says_once_how_it_was_asked_for_in_its_own_folder(
    calls: Calls, config: TrainConfig
) -> None:
    origins: list[tuple[Path, bool]] = []
    begin(config, calls.folder, write_request=lambda at: origins.append((at, is_held(at))))
    assert origins == [(calls.folder, True)]


def test_what_is_refused_leaves_no_folder(
    calls: Calls, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> Prepared:
        raise InputError("task.max_length must be lower.")

    monkeypatch.setattr(runs, "prepare", refuses)
    with pytest.raises(InputError):
        begin(config, calls.folder, write_request=lambda _: calls.append("write_request"))
    assert calls == [] and not calls.folder.exists()


def test_a_used_folder_is_refused_before_anything_is_read(
    calls: Calls, config: TrainConfig
) -> None:
    calls.folder.mkdir()
    (calls.folder / "ledger.jsonl").write_text('{"step": 1}')
    with pytest.raises(InputError, match="has taken noisy steps"):
        begin(config, calls.folder)
    assert calls == []
    assert [path.name for path in calls.folder.iterdir()] == ["ledger.jsonl"]


def test_a_folder_used_while_the_run_was_prepared_is_refused_too(
    calls: Calls, config: TrainConfig, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepares(*_: Any) -> Prepared:
        calls.folder.mkdir()
        (calls.folder / "ledger.jsonl").write_text('{"step": 1}')
        return prepared

    monkeypatch.setattr(runs, "prepare", prepares)
    with pytest.raises(InputError, match="has taken noisy steps"):
        begin(config, calls.folder)
    assert calls == [] and not (calls.folder / "config.yaml").exists()


def test_a_folder_that_another_process_holds_is_left_as_it_was(
    calls: Calls, config: TrainConfig
) -> None:
    calls.folder.mkdir()
    with hold_run(calls.folder), pytest.raises(InputError, match="in use by another dpft process"):
        begin(config, calls.folder)
    assert calls == ["prepare"] and not (calls.folder / "config.yaml").exists()


def test_a_crash_is_kept_for_the_owner(
    calls: Calls, command: TrainCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crashes(*_: Any) -> Prepared:
        raise ZeroDivisionError("Qzxmessage")

    monkeypatch.setattr(runs, "prepare", crashes)
    with pytest.raises(ZeroDivisionError):
        run(command, calls.folder)
    assert "Qzxmessage" in (calls.folder / "private/traceback.txt").read_text()


@pytest.mark.parametrize("resume", [None, "run"])
def test_a_command_begins_or_goes_on(
    calls: Calls, command: TrainCommand, resume: str | None
) -> None:
    calls.note("begin", "go_on")
    run(command.replace(resume=resume), calls.folder)
    assert calls == ["begin" if resume is None else "go_on"]


def standing(calls: Calls, *, has_ended: bool) -> None:
    """Makes the run's folder one that broke off, or that has ended."""
    calls.folder.mkdir()
    known = SimpleNamespace(step=1, run=BoundRun())
    point = SimpleNamespace(has_ended=has_ended, run_id="a" * 32, ledger=object(), checkpoint=known)
    calls.note("same_records", "delete_generator_states", "finish")
    calls.note("check_model")
    secrets = Secrets(unit_key=bytes(32), held_out_key=None, audit_key=b"")
    calls.note(find_resume_point=point, read_secrets=secrets)


def test_a_run_that_goes_on_is_held_against_what_it_was_before_it_does(
    calls: Calls, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing(calls, has_ended=False)
    go_on(config, calls.folder)
    names = ["find_resume_point", "read_secrets", "prepare", "same_records"]
    assert calls == [*names, "finish"]

    def refuses(folder: Path, _: Any) -> None:
        assert is_held(folder)
        raise InputError("other records.")

    calls.clear()
    monkeypatch.setattr(runs, "same_records", refuses)
    with pytest.raises(InputError, match="other records"):
        go_on(config, calls.folder)
    assert "finish" not in calls


def test_of_a_run_that_has_ended_only_its_secrets_are_deleted(
    calls: Calls, config: TrainConfig
) -> None:
    standing(calls, has_ended=True)
    go_on(config, calls.folder)
    assert calls.pop() == "finish", "its report is not there yet"
    assert calls.pop(1) == "check_model"
    calls.clear()
    for name in ("report.md", "privacy.json"):
        (calls.folder / name).touch()
    go_on(config, calls.folder)
    names = ["find_resume_point", "check_model", "delete_generator_states"]
    assert calls == names


def test_a_run_that_goes_on_keeps_the_scores_before_training(
    calls: Calls, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "has_scores", lambda _, stage: stage == "before")
    calls.folder.mkdir()
    finish(prepared, calls.folder, None)
    assert calls[:2] == ["train", "score"] and "write_scores" not in calls


def test_a_run_that_fails_in_training_reports_nothing(
    calls: Calls, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RunError("weights are not finite.")

    monkeypatch.setattr(runs, "train", fails)
    calls.folder.mkdir()
    with pytest.raises(RunError):
        finish(prepared, calls.folder, None)
    assert calls == ["score", "write_scores"]


def test_a_run_does_not_go_on_over_another_base() -> None:
    """The checkpoint has the frozen weights too; what is released stands on those of the base."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    frozen = digests_of(model[:1])
    prepared: Any = SimpleNamespace(plan=SimpleNamespace(privacy=True), model=model, shards=None)
    bound = SimpleNamespace(path=Path("step-2"), run=SimpleNamespace(frozen=frozen))
    stands: Any = SimpleNamespace(checkpoint=bound)
    with torch.no_grad():
        model[1].weight.mul_(2)  # this one trains
        same_base(prepared, stands)
        model[0].bias[0] += 2**-20
    with pytest.raises(StateError, match=r"step-2 is .* of another model: 0\.bias differs"):
        same_base(prepared, stands)
    assert frozen, "there was something to compare"
