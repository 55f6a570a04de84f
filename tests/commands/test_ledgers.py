"""``dpft account run=`` and ``runs=``: what ledgers say was spent."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dpft.commands.account_runs import (
    SAME_DATA,
    run_record,
    run_table,
    runs_record,
    runs_table,
)
from dpft.commands.ledger_account import SpentRun, read_spent
from dpft.privacy.accounting import EpsilonBound
from dpft.strict_model import as_json
from tests.commands.run_folders import SIZE, make_run, mechanism, tear
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


@pytest.mark.slow
def test_a_runs_epsilon_is_rebuilt_from_its_ledger(workspace: Workspace) -> None:
    found = record(workspace, "run=a")
    steps = (found["plan"]["steps"], found["steps_taken"])
    assert (steps, found["accountant"]) == ((5, 5), "rdp")
    assert found["epsilon"] == found["epsilons"]["rdp"]
    assert (found["ledger"]["lines"], found["ledger"]["closed"]) == (7, True)


@pytest.mark.slow
def test_a_run_that_broke_off_is_accounted_for_with_its_torn_step(workspace: Workspace) -> None:
    outcome = workspace.run("account", "run=b")
    text = " ".join(outcome.out.split())
    assert "3 lines and an incomplete one, not closed" in text
    assert "3 steps taken of 5 planned" in text
    assert "Its step is counted" in text


@pytest.mark.slow
def test_the_head_is_compared_with_the_one_given(workspace: Workspace) -> None:
    head = record(workspace, "run=a")["ledger"]["head"]
    assert record(workspace, "run=a", f"head={head}")["ledger"]["head_checked"] is True
    assert "equals the given head" in workspace.run("account", "run=a", f"head={head}").out
    other = workspace.run("account", "run=a", f"head={'f' * 64}")
    assert (other.code, other.out) == (3, "")
    assert f"{'f' * 64}, got {head}" in other.err


@pytest.mark.slow
def test_a_spoilt_ledger_is_refused_by_line_number(workspace: Workspace) -> None:
    path = workspace.root / "a" / "ledger.jsonl"
    plan, step, *others = path.read_text().splitlines(keepends=True)
    path.write_text("".join([plan, step.replace("1.5", "9.5"), *others]))
    for arguments in (["run=a"], ["runs=[b,a]"]):
        outcome = workspace.run("account", *arguments)
        assert (outcome.code, outcome.out) == (3, "")
        assert "ledger.jsonl, line 2" in outcome.err


@pytest.mark.slow
def test_runs_on_the_same_data_are_composed_beside_each_ones_own(workspace: Workspace) -> None:
    found = record(workspace, "runs=[a,b]")
    assert [(run["run"], run["steps_taken"]) for run in found["runs"]] == [("a", 5), ("b", 3)]
    assert found["accountant"] == "pld"
    assert found["steps_taken"] == 8
    assert found["epsilon"] > found["runs"][1]["epsilons"]["pld"]
    assert found["same_data"] == SAME_DATA
    text = " ".join(workspace.run("account", "runs=[a,b]", "delta=0.001").out.split())
    assert SAME_DATA in text and "at delta = 0.001" in text and "8 steps of 2 runs" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["run=missing"], ["run must", "'missing'"]),
        *slow(
            (["runs=[a,missing]"], ["runs must", "'missing'"]),
            (["runs=[a,./a]"], ["runs must", "a, a"]),
            (["run=a", "runs=[b]"], ["run and runs"]),
            (["runs=[]"], ["runs must"]),
            (["run=a", "curve=true", "to=x.svg"], ["curve, to"]),
            (["run=a", "head=abc"], ["head must", "'abc'"]),
            (["runs=[a,b]", f"head={'0' * 64}"], ["head needs run="]),
            (["run=a", "accountant=gdp"], ["accountant must", "prv | pld | rdp"]),
        ),
    ],
)
def test_bad_input_is_one_sentence(
    workspace: Workspace, arguments: list[str], parts: list[str]
) -> None:
    sentence = workspace.refusal("account", *arguments)
    assert all(part in sentence for part in parts), sentence


@pytest.mark.slow
def test_two_runs_of_one_plan_cost_what_both_do_and_have_heads_of_their_own(
    workspace: Workspace,
) -> None:
    make_run(workspace.root / "c")
    both = record(workspace, "runs=[a,c]")
    assert both["epsilon"] > max(run["epsilon"] for run in both["runs"])
    assert len({run["ledger"]["head"] for run in both["runs"]}) == 2
    assert len({run["ledger"]["run_id"] for run in both["runs"]}) == 2
    head = both["runs"][1]["ledger"]["head"]
    lodged = workspace.run("account", "run=a", f"head={head}")
    assert (lodged.code, head in lodged.err) == (3, True)
    assert "copies of one run" not in workspace.run("account", "runs=[a,c]").out


@pytest.mark.slow
def test_copies_of_a_run_are_said_to_be_copies_and_counted_each(workspace: Workspace) -> None:
    """A copy that went on has noise of its own, and is named as the run that it was copied of."""
    shutil.copytree(workspace.root / "b", workspace.root / "d")
    both = record(workspace, "runs=[b,d]")
    assert both["steps_taken"] == 6
    text = " ".join(workspace.run("account", "runs=[b,d]").out.split())
    assert "b and d are copies of one run, because their ledgers have the same first" in text


@pytest.mark.slow
def test_a_total_says_how_many_ledgers_it_counts_and_what_it_leaves_out(
    workspace: Workspace,
) -> None:
    (workspace.root / "2026-01-01").mkdir()
    for name in ("a", "b"):
        (workspace.root / name).rename(workspace.root / "2026-01-01" / name)
    table = workspace.run("account", "runs=.", "leave_out=2026-01-01/b").out
    assert "note: ledgers counted: 1; folders skipped: 1" in table
    assert "skipped: 2026-01-01/b: skipped by leave_out" in table
    outcome = workspace.run("account", "run=2026-01-01/a", "data_id=mine")
    assert (outcome.code, "data_id" in outcome.err) == (2, True)


DELTA = 1 / (2 * SIZE)
BOUND = EpsilonBound(
    epsilon=1.2345, delta=DELTA, accountant="rdp", epsilons={"rdp": 1.2345}, warnings=("mind it.",)
)


@pytest.fixture
def ended(tmp_path: Path) -> SpentRun:
    return read_spent(str(make_run(tmp_path / "ended")))


@pytest.fixture
def broken(tmp_path: Path) -> SpentRun:
    """Of two noises, as a histogram and steps, broken off after three of five steps."""
    steps = (mechanism(),) * 3
    run = read_spent(str(make_run(tmp_path / "broken", *steps, ended=False)))
    (usual,) = run.taken
    return replace(run, taken={usual: 2, usual.replace(noise_multiplier=3.0): 1})


def rows(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()]


def test_a_runs_table_has_its_steps_its_ledger_and_the_headline_last(ended: SpentRun) -> None:
    table = run_table(ended, BOUND, head_checked=False)
    assert rows(table)[1:4] == [
        ["ledger", "7", "lines,", "closed"],
        ["run", "id", ended.ledger.run_id],
        ["head", ended.ledger.head],
    ]
    assert "steps     5 of noise multiplier 1.5 at sample rate 0.2" in table
    assert "5 steps taken of 5 planned" in table
    assert table.index("epsilon = 1.2345") < table.index("warning: mind it.")


def test_what_shows_the_end_is_said_and_where_nothing_does(
    ended: SpentRun, broken: SpentRun
) -> None:
    closed = run_table(ended, BOUND, head_checked=False)
    assert (
        "shown only by the closing line, which the owner of the folder could have written" in closed
    )
    by_private = run_table(replace(ended, end="private/"), BOUND, head_checked=False)
    assert "shown by private/" in by_private
    table = run_table(broken, BOUND, head_checked=False)
    assert "unproven" in table and "not closed: the run has not ended" in table
    assert "3 steps taken of 5 planned" in table


def test_a_runs_record_has_each_noise_with_its_steps(ended: SpentRun, broken: SpentRun) -> None:
    one, several = (as_json(run_record(run, BOUND)) for run in (ended, broken))
    noise = {"noise_multiplier": 1.5, "sample_rate": 0.2, "threshold_delta": 0.0}
    assert one["mechanisms"] == [{**noise, "steps": 5}]
    assert several["mechanisms"] == [
        {**noise, "steps": 2},
        {**noise, "noise_multiplier": 3.0, "steps": 1},
    ]
    assert (several["steps_taken"], several["plan"]["steps"]) == (3, 5)
    assert (several["ledger"]["closed"], several["ledger"]["end"]) == (False, "unproven")
    assert None not in several.values(), "what is not known has no key"


def test_a_reproducible_run_is_not_called_private(ended: SpentRun) -> None:
    assert run_record(ended, BOUND).private is True
    seeded = replace(ended, plan=ended.plan.replace(reproducible=True))
    assert run_record(seeded, BOUND).private is False
    both = runs_record([(ended, BOUND), (seeded, BOUND)], BOUND)
    assert both.private is False


def test_runs_together_stand_with_their_own_cost_and_whose_word_it_is(
    ended: SpentRun, broken: SpentRun
) -> None:
    runs = [(ended, BOUND), (broken, BOUND.replace(epsilon=0.5, warnings=()))]
    together = BOUND.replace(epsilon=2.0, epsilons={}, warnings=())
    table = runs_table(runs, together)
    by = BOUND.accountant
    assert rows(table)[1] == ["5", "1.5", "0.2", "0.0125", "1.2345", by, ended.folder]
    # its epsilon and its folder stand once, beside the first of its noises
    first = ["2", "1.5", "0.2", "0.0125", "0.5000", by, broken.folder]
    assert rows(table)[2:4] == [first, ["1", "3", "0.2"]]
    assert "8 steps of 2 runs" in table and "epsilon = 2.0000" in table
    said = "".join(table.split())  # however the lines are wrapped
    for sentence in (SAME_DATA, f"{ended.folder}: mind it."):
        assert "".join(sentence.split()) in said
    assert "not comparable" not in table, "all are by one accountant at one delta"
    for other in ({"delta": 0.001}, {"accountant": "pld"}):
        apart = runs_table(runs, together.replace(**other))
        assert "not comparable" in " ".join(apart.split())
    record = runs_record(runs, together)
    assert (record.steps_taken, record.same_data) == (8, SAME_DATA)
    assert [run.epsilon for run in record.runs] == [1.2345, 0.5]
