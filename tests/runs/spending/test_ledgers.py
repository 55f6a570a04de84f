"""``dpft account run=`` and ``runs=``: what ledgers say was spent."""

import json
import shutil
from pathlib import Path

import pytest

from dpft.runs.ledgers import SAME_DATA
from tests.runs.spending.run_folders import edit, make_run, mechanism, tear
from tests.slowness import slow
from tests.stories.tiny import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """A folder with an ended run ``a`` and a run ``b`` that broke off in its third step."""
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", *[mechanism()] * 2, ended=False)
    tear(tmp_path / "b")
    return Workspace(tmp_path)


def record(workspace: Workspace, *arguments: str) -> dict:
    outcome = workspace.run("account", *arguments, "output=json")
    assert (outcome.code, outcome.err, outcome.new) == (0, "", frozenset())
    return json.loads(outcome.out)


def test_a_runs_epsilon_is_rebuilt_from_its_ledger(workspace: Workspace) -> None:
    found = record(workspace, "run=a")
    assert (found["steps"], found["steps_taken"], found["accountant"]) == (5, 5, "rdp")
    assert found["epsilon"] == found["epsilons"]["rdp"]
    assert (found["ledger"]["lines"], found["ledger"]["closed"]) == (7, True)


def test_a_run_that_broke_off_is_accounted_for_with_its_torn_step(workspace: Workspace) -> None:
    outcome = workspace.run("account", "run=b")
    text = " ".join(outcome.out.split())
    assert "3 lines and a torn one, not closed" in text
    assert "3 steps taken of 5 planned" in text
    assert "its step is counted" in text


def test_the_head_is_compared_with_the_one_given(workspace: Workspace) -> None:
    head = record(workspace, "run=a")["ledger"]["head"]
    assert record(workspace, "run=a", f"head={head}")["ledger"]["head_checked"] is True
    assert "is the head that was given" in workspace.run("account", "run=a", f"head={head}").out
    other = workspace.run("account", "run=a", f"head={'f' * 64}")
    assert (other.code, other.out) == (3, "")
    assert f"must have the head {'f' * 64}, got {head}" in other.err


@pytest.mark.parametrize("spoil", ["edit", "gap", "reorder"])
def test_a_spoilt_ledger_is_refused_by_line_number(workspace: Workspace, spoil: str) -> None:
    path = workspace.root / "a" / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    if spoil == "edit":
        lines[1] = lines[1].replace("1.5", "9.5")
    elif spoil == "gap":
        del lines[2]
    else:
        lines[2], lines[3] = lines[3], lines[2]
    path.write_text("".join(lines))
    for arguments in (["run=a"], ["runs=[b,a]"]):
        outcome = workspace.run("account", *arguments)
        assert (outcome.code, outcome.out) == (3, "")
        line = 2 if spoil == "edit" else 3
        assert f"ledger.jsonl, line {line}: the " in outcome.err


def test_runs_on_the_same_data_are_composed_beside_each_ones_own(workspace: Workspace) -> None:
    found = record(workspace, "runs=[a,b]")
    assert [(run["run"], run["steps_taken"]) for run in found["runs"]] == [("a", 5), ("b", 3)]
    assert found["accountant"] == "pld"
    assert found["steps_taken"] == 8
    assert found["epsilon"] > found["runs"][1]["epsilons"]["pld"]
    assert found["same_data"] == SAME_DATA
    text = " ".join(workspace.run("account", "runs=[a,b]", "delta=0.001").out.split())
    assert SAME_DATA in text and "at delta = 0.001" in text and "8 steps of 2 runs" in text


def test_a_sweeps_folder_is_its_runs(workspace: Workspace) -> None:
    (workspace.root / "sweep").mkdir()
    for name in ("a", "b"):
        (workspace.root / name).rename(workspace.root / "sweep" / name)
    found = record(workspace, "runs=sweep")
    assert [run["run"] for run in found["runs"]] == ["sweep/a", "sweep/b"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["run=missing"], "'missing', which does not exist"),
        (["run=a", "runs=[b]"], "exactly one of run and runs must be given, got both"),
        (["runs=[a,./a]"], "runs must name different folders"),
        (["run=a", "eps=3"], "run takes its numbers from the ledger, got eps too; drop it"),
        (["run=a", "head=abc"], "head must be 64 hexadecimal digits"),
        *slow(
            (["runs=[a,missing]"], "'missing', which does not exist"),
            (["runs=[]"], "runs must name a folder at least"),
            (["run=a", "curve=true", "to=x.svg"], "got curve, to too; drop them"),
            (["runs=[a,b]", f"head={'0' * 64}"], "head needs run=RUN"),
            (["run=a", "delta=2"], "delta must be in (0, 1), got 2"),
            (["run=a", "accountant=gdp"], "accountant must be one of"),
        ),
    ],
)
def test_bad_input_is_one_sentence(workspace: Workspace, arguments: list[str], part: str) -> None:
    assert part in workspace.refusal("account", *arguments)


def test_two_runs_of_one_plan_cost_what_both_do_and_have_heads_of_their_own(
    workspace: Workspace,
) -> None:
    make_run(workspace.root / "c")
    both = record(workspace, "runs=[a,c]")
    assert both["epsilon"] > max(run["epsilon"] for run in both["runs"])
    assert len({run["ledger"]["head"] for run in both["runs"]}) == 2
    assert len({run["ledger"]["run_id"] for run in both["runs"]}) == 2
    lodged = workspace.run("account", "run=a", f"head={both['runs'][1]['ledger']['head']}")
    assert (lodged.code, "or the head is of another run" in lodged.err) == (3, True)
    assert "copies of one run" not in workspace.run("account", "runs=[a,c]").out


def test_copies_of_a_run_are_said_to_be_copies_and_counted_each(workspace: Workspace) -> None:
    """A copy that went on has noise of its own, and is named as the run that it was copied of."""
    shutil.copytree(workspace.root / "b", workspace.root / "d")
    both = record(workspace, "runs=[b,d]")
    assert both["steps_taken"] == 6
    text = " ".join(workspace.run("account", "runs=[b,d]").out.split())
    assert "b and d are copies of one run by their ledgers' first lines" in text


@pytest.mark.parametrize("left", [0, 10, 60])
def test_a_torn_first_line_is_refused_where_nothing_shows_what_followed(
    workspace: Workspace, left: int
) -> None:
    path = workspace.root / "b" / "ledger.jsonl"
    path.write_text(path.read_text()[: left or None].splitlines()[0][: left or 120])
    for name in ("run=b", "runs=[a,b]"):
        outcome = workspace.run("account", name)
        assert (outcome.code, outcome.out) == (3, "")
        assert "b/ledger.jsonl, line 1: the first line is torn" in outcome.err


def test_what_another_file_says_otherwise_is_named_and_not_answered_for(
    workspace: Workspace,
) -> None:
    before = record(workspace, "run=a")
    edit(workspace.root / "a", delta=0.02)
    found = record(workspace, "run=a")
    assert (found["epsilon"], found["delta"]) == (before["epsilon"], before["delta"])
    for words in (["run=a"], ["runs=[a,b]"]):
        text = " ".join(workspace.run("account", *words).out.split())
        assert "a/privacy.json: delta must be 0.0125, as the ledger says, got 0.02" in text


def test_a_total_says_how_many_ledgers_it_counts_and_what_it_leaves_out(
    workspace: Workspace,
) -> None:
    (workspace.root / "2026-01-01").mkdir()
    for name in ("a", "b"):
        (workspace.root / name).rename(workspace.root / "2026-01-01" / name)
    table = workspace.run("account", "runs=.", "leave_out=2026-01-01/b").out
    assert "note: ledgers counted: 1; folders left out: 1" in table
    assert "left out: 2026-01-01/b: left out by leave_out" in table
    outcome = workspace.run("account", "run=2026-01-01/a", "data_id=mine")
    assert (outcome.code, "data_id needs runs=DIR" in outcome.err) == (2, True)
