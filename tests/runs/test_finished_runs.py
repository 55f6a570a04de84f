"""Only runs that ended are reported on, and none whose ledger lacks what its report counts."""

import os
from pathlib import Path

import pytest

from dpft.errors import InputError, StateError
from dpft.run_folder import PAGE, REPORT
from dpft.runs.saved_run import read_finished_runs, rebuild_report
from tests.reports.run.folders import write_run
from tests.runs.spending.run_folders import make_run


def test_finished_runs_are_read_and_unfinished_ones_are_named(tmp_path: Path) -> None:
    ended = make_run(tmp_path / "sweep" / "0")
    open_ = make_run(tmp_path / "sweep" / "1", ended=False)
    records, unfinished = read_finished_runs([tmp_path / "sweep"])
    assert [record.folder for record in records] == [ended]
    assert records[0].privacy.steps_taken == 5
    assert unfinished == [open_]


def test_where_none_has_ended_the_way_to_end_them_is_said(tmp_path: Path) -> None:
    for name in "ab":
        make_run(tmp_path / name, ended=False)
    with pytest.raises(InputError, match="got 2 that have not; go on .* dpft train resume=RUN"):
        read_finished_runs([tmp_path / "a", tmp_path / "b"])


def test_a_run_whose_ledger_was_cut_has_no_record(tmp_path: Path) -> None:
    ledger = make_run(tmp_path / "run") / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(StateError, match="the ledger must have 7 lines"):
        read_finished_runs([tmp_path / "run"])


def test_a_report_that_was_handed_on_without_its_ledger_is_read(tmp_path: Path) -> None:
    (make_run(tmp_path / "run") / "ledger.jsonl").unlink()
    records, _ = read_finished_runs([tmp_path / "run"])
    assert records[0].privacy.epsilon == 1.0


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
    with pytest.raises(InputError, match="symbolic link"):
        read_finished_runs([folder])


@pytest.mark.parametrize("searched", [True, False])
def test_a_rebuilt_report_is_the_same_and_of_a_search_as_old(
    tmp_path: Path, searched: bool
) -> None:
    selection = {"theorem": "T", "eta": 1.0, "gamma": 0.1, "expected_trials": 3.0}
    selection["search_space"] = {}
    folder = write_run(tmp_path / "run", privacy={"selection": selection} if searched else {})
    (record,), _ = read_finished_runs([folder])
    rebuild_report(record)
    first = (folder / PAGE).read_bytes()
    os.utime(folder / PAGE, (1, 1))
    (folder / REPORT).unlink()
    rebuild_report(record)
    assert (folder / PAGE).read_bytes() == first and (folder / REPORT).exists()
    assert ((folder / PAGE).stat().st_mtime == 1) == searched
