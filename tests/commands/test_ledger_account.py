"""Runs are read from their ledgers; other files of the folder do not change what they spent."""

import os
from pathlib import Path

import pytest

from dpft.commands.guarantee import read_finished_runs, rebuild_report
from dpft.commands.ledger_account import (
    find_ledgers,
    read_spent,
)
from dpft.errors import StateError
from dpft.privacy.accounting.calibration import Calibration
from dpft.privacy.ledger import Noise
from dpft.run_folder import PAGE, REPORT
from tests.commands.run_folders import (
    BATCH,
    NOISE,
    SIZE,
    make_plan,
    make_run,
    mechanism,
)
from tests.rejections import rejects

USUAL = Noise(noise_multiplier=NOISE, sample_rate=BATCH / SIZE)


@pytest.mark.parametrize("ended", [True, False])
def test_the_ledger_alone_says_what_a_run_spent(tmp_path: Path, ended: bool) -> None:
    """What stands in other files, or whether they are there, changes nothing."""
    folder = make_run(tmp_path / "a", ended=ended, delta=0.01)
    whole = read_spent(str(folder))
    assert (whole.taken, whole.plan.delta) == ({USUAL: 5}, 0.01)
    (folder / "config.yaml").unlink()
    (folder / "privacy.json").unlink(missing_ok=True)
    alone = read_spent(str(folder))
    assert (alone.taken, alone.plan, alone.end) == (whole.taken, whole.plan, whole.end)


@pytest.mark.parametrize("changes", [{"noise_multiplier": 9.0}, {"sample_rate": 0.1}])
def test_a_step_that_is_not_the_plans_is_refused_by_line_number(
    tmp_path: Path, changes: dict
) -> None:
    folder = make_run(tmp_path / "a", mechanism(), mechanism(**changes), ended=False)
    with pytest.raises(StateError, match="line 3"):
        read_spent(str(folder))


@pytest.mark.parametrize("text", ["", '{"mechanism": {"name"', '{"plan": {"acc'])
def test_a_ledger_that_lost_its_plan_is_no_run_that_spent_nothing(
    tmp_path: Path, text: str
) -> None:
    folder = make_run(tmp_path / "a", ended=False)
    (folder / "ledger.jsonl").write_text(text)
    with pytest.raises(StateError, match="line 1"):
        read_spent(str(folder))


def test_a_run_without_privacy_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", name="none")
    (folder / "ledger.jsonl").unlink()
    (folder / "privacy.json").unlink()
    for rejected in (folder, tmp_path / "b"):
        with rejects("run", str(rejected)):
            read_spent(str(rejected))


def test_a_trials_ledger_answers_for_no_search(tmp_path: Path) -> None:
    """Its own line says so: the folder may be handed on without the search's files."""
    folder = make_run(tmp_path / "a", plan=make_plan(is_trial=True), ended=False)
    with rejects("run", str(folder)):
        read_spent(str(folder))
    assert read_spent(str(folder), trial=True).steps == 5


@pytest.mark.slow
def test_every_ledger_below_a_folder_is_found(tmp_path: Path) -> None:
    """outputs/DATE/TIME is two folders deep: such runs were left out without a word."""
    for name in ("2026-01-01/10", "2026-01-01/2", "sweep/0/0", "top"):
        make_run(tmp_path / name, mechanism(), ended=False)
    made = make_run(tmp_path / "top/private/tuning/trial-0", mechanism(), ended=False)
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing/config.yaml").write_text("privacy: {name: dp}")
    found = find_ledgers([str(tmp_path)])
    names = [Path(name).relative_to(tmp_path).as_posix() for name in found.folders]
    assert names == ["2026-01-01/2", "2026-01-01/10", "sweep/0/0", "top"]
    assert found.left_out == (f"{tmp_path / 'nothing'}: skipped, because it took no noisy step",)
    assert find_ledgers([str(made)]).folders == (str(made),)


def test_runs_in_runs_and_links_are_not_passed_over(tmp_path: Path) -> None:
    top = make_run(tmp_path / "runs", mechanism(), ended=False)
    make_run(top / "again", mechanism(), ended=False)
    make_run(tmp_path / "runs/private", mechanism(), ended=False)
    make_run(tmp_path / "private/mine", mechanism(), ended=False)
    (tmp_path / "lost/private").mkdir(parents=True)
    (tmp_path / "lost/private/steps.jsonl").write_text('{"step": 1}\n')
    (top / "tracking").mkdir()
    (top / "tracking/config.yaml").write_text("privacy: {name: none}")
    (tmp_path / "linked").symlink_to(top)
    found = find_ledgers([str(tmp_path)])
    names = [Path(name).relative_to(tmp_path).as_posix() for name in found.folders]
    assert names == ["lost", "private/mine", "runs", "runs/again"]
    assert found.left_out == (
        f"{tmp_path / 'linked'}: skipped, because it is a symbolic link; name its target instead",
    )


@pytest.mark.slow
def test_what_no_total_covers_is_refused_or_left_out_by_word(tmp_path: Path) -> None:
    private = make_run(tmp_path / "runs/a")
    open_run = make_run(tmp_path / "runs/b", name="none")
    state = open_run / "private/checkpoints/step-00000000/state.json"
    state.parent.mkdir(parents=True)
    state.write_text('{"schema_version": 2}')
    for name in ("ledger.jsonl", "privacy.json"):
        (open_run / name).unlink()
    with rejects("runs", str(open_run)) as faults:
        find_ledgers([str(tmp_path)])
    assert faults[0].hint == f"'leave_out=[{open_run}]'"
    found = find_ledgers([str(tmp_path)], leave_out=[str(open_run)])
    assert found.folders == (str(private),)
    assert found.left_out == (f"{open_run}: skipped by leave_out",)
    with rejects("leave_out", (str(open_run),)):
        find_ledgers([str(private)], leave_out=[str(open_run)])
    with rejects("runs", (str(private), str(private))):
        find_ledgers([str(private), str(private)])
    (tmp_path / "empty").mkdir()
    with rejects("runs", str(tmp_path / "empty")):
        find_ledgers([str(tmp_path / "empty")])


def test_runs_of_other_data_by_their_plans_are_left_out(tmp_path: Path) -> None:
    for name, data in (("a", "notes"), ("b", "mails"), ("c", None)):
        make_run(tmp_path / name, mechanism(), plan=make_plan(data_id=data), ended=False)
    found = find_ledgers([str(tmp_path)], data_id="notes")
    assert [Path(name).name for name in found.folders] == ["a", "c"]
    assert found.left_out == (f"{tmp_path / 'b'}: skipped, because privacy.data_id=mails",)


def test_a_lost_ledger_is_not_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "runs/a")
    (folder / "ledger.jsonl").unlink()
    (lost,) = find_ledgers([str(tmp_path)]).folders
    with rejects("run", lost):
        read_spent(lost)


def test_finished_runs_are_read_and_unfinished_ones_are_named(tmp_path: Path) -> None:
    ended = make_run(tmp_path / "sweep" / "0")
    open_ = make_run(tmp_path / "sweep" / "1", ended=False)
    records, unfinished = read_finished_runs([tmp_path / "sweep"])
    assert [record.folder for record in records] == [ended]
    assert records[0].privacy.steps_taken == 5
    assert unfinished == [open_]


def test_where_none_has_ended_the_way_to_end_them_is_said(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name, ended=False) for name in "ab"]
    with rejects("runs", tuple(map(str, folders))) as faults:
        read_finished_runs(folders)
    assert faults[0].hint == f"dpft train resume={tmp_path / 'a'}"


def test_a_ledger_that_private_knows_of_must_be_there(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "ledger.jsonl").unlink()
    (folder / "private").mkdir()
    (folder / "private/steps.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(StateError, match=r"ledger\.jsonl"):
        read_finished_runs([folder])


def test_a_link_in_a_received_folder_is_refused(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "metrics.json").symlink_to(tmp_path / "mine")
    with rejects(str(folder / "metrics.json")):
        read_finished_runs([folder])


@pytest.mark.slow
@pytest.mark.parametrize("searched", [True, False])
def test_a_rebuilt_report_is_the_same_and_of_a_search_as_old(
    tmp_path: Path, searched: bool
) -> None:
    known = None
    if searched:
        chosen = {"theorem": "T", "eta": 1.0, "gamma": 0.1, "expected_trials": 3.0}
        known = {"selection": {**chosen, "search_space": {}}}
    calibration = Calibration(accountant="rdp-selection", epsilon=3.0, grid="g", target=3.0)
    plan = make_plan(is_trial=searched, calibration=calibration if searched else None)
    folder = make_run(tmp_path / "run", plan=plan, known=known, eps=3.0)
    (record,), _ = read_finished_runs([folder])
    rebuild_report(record)
    first = (folder / PAGE).read_bytes()
    os.utime(folder / PAGE, (1, 1))
    (folder / REPORT).unlink()
    rebuild_report(record)
    assert (folder / PAGE).read_bytes() == first and (folder / REPORT).exists()
    assert ((folder / PAGE).stat().st_mtime == 1) == searched
