"""What was spent, in words and ready for JSON: each run's steps, and what all of them cost."""

from dataclasses import replace
from pathlib import Path

import pytest

from dpft.privacy.accounting import EpsilonBound
from dpft.records.form import as_json
from dpft.runs.ledgers import (
    SAME_DATA,
    run_record,
    run_table,
    together_record,
    together_table,
)
from dpft.runs.saved_run import SpentRun, read_spent
from tests.runs.spending.run_folders import SIZE, make_run, mechanism

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
    return replace(run, taken={usual: 2, replace(usual, noise_multiplier=3.0): 1})


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
    assert "shown by the closing line alone, which whoever owns the folder can write" in closed
    by_private = run_table(replace(ended, end="private/"), BOUND, head_checked=False)
    assert "shown by private/" in by_private
    table = run_table(broken, BOUND, head_checked=False)
    assert "unproven" in table and "not closed: the run has not ended" in table
    assert "3 steps taken of 5 planned" in table


def test_a_head_or_a_witness_that_agreed_is_named(ended: SpentRun) -> None:
    plain = run_table(ended, BOUND, head_checked=False)
    assert "head that was given" not in plain and "\nwitness " not in plain
    table = run_table(ended, BOUND, head_checked=True, witnessed_lines=4)
    assert "is the head that was given" in table
    assert "has the head after line 4, as it is here" in table


def test_a_runs_record_has_one_noise_or_each_of_several(ended: SpentRun, broken: SpentRun) -> None:
    one, several = (as_json(run_record(run, BOUND)) for run in (ended, broken))
    assert (one["noise_multiplier"], one["sample_rate"]) == (1.5, 0.2)
    assert not {"noise_multiplier", "sample_rate"} & several.keys()
    assert [(each["noise_multiplier"], each["steps"]) for each in several["mechanisms"]] == [
        (1.5, 2),
        (3.0, 1),
    ]
    assert (several["steps_taken"], several["steps"]) == (3, 5)
    assert (several["ledger"]["closed"], several["ledger"]["end"]) == (False, "unproven")
    assert None not in several.values(), "what is not known has no key"


def test_a_reproducible_run_is_not_called_private(ended: SpentRun) -> None:
    assert run_record(ended, BOUND).private is True
    seeded = replace(ended, plan=replace(ended.plan, reproducible=True))
    assert run_record(seeded, BOUND).private is False
    both = together_record([(ended, BOUND), (seeded, BOUND)], BOUND)
    assert both.private is False


def test_runs_together_stand_with_their_own_cost_and_whose_word_it_is(
    ended: SpentRun, broken: SpentRun
) -> None:
    runs = [(ended, BOUND), (broken, replace(BOUND, epsilon=0.5, warnings=()))]
    together = replace(BOUND, epsilon=2.0, epsilons={}, warnings=())
    table = together_table(runs, together)
    by = BOUND.accountant
    assert rows(table)[1] == ["5", "1.5", "0.2", "0.0125", "1.2345", by, ended.folder]
    # its epsilon and its folder stand once, beside the first of its noises
    first = ["2", "1.5", "0.2", "0.0125", "0.5000", by, broken.folder]
    assert rows(table)[2:4] == [first, ["1", "3", "0.2"]]
    assert "8 steps of 2 runs" in table and "epsilon = 2.0000" in table
    said = "".join(table.split())  # however the lines are wrapped
    for sentence in (SAME_DATA, f"{ended.folder}: mind it."):
        assert "".join(sentence.split()) in said
    assert SAME_DATA == (
        "dpft cannot see which data a run was trained on: this epsilon holds if these runs, and no"
        " others, were trained on the same data"
    )
    assert "compares to no other" not in table, "all are by one accountant at one delta"
    for other in ({"delta": 0.001}, {"accountant": "pld"}):
        apart = together_table(runs, replace(together, **other))
        assert "compares to no other" in " ".join(apart.split())
    record = together_record(runs, together)
    assert (record.steps_taken, record.same_data) == (8, SAME_DATA)
    assert [run.epsilon for run in record.runs] == [1.2345, 0.5]
