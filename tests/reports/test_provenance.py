"""What a record and its report say of processes, canaries, audits and of a search."""

from pathlib import Path
from typing import Any

import pytest

from dpft.parallel.parallel_config import Process, described, sharding
from dpft.privacy.accounting.selection import ACCOUNTANT, TrialCount
from dpft.reports.audit_findings import GuessesInShort
from dpft.reports.card import render_card
from dpft.reports.privacy_json import PrivateRun
from dpft.reports.privacy_record import (
    processes_of,
    selection_of,
)
from dpft.reports.privacy_sentences import (
    NO_MIXING,
    is_another_mechanism,
    network_sentences,
    one_run_rows,
    process_rows,
)
from dpft.strict_model import as_json, parse
from tests.reports.folders import EXPORTED, read, write_run
from tests.reports.plain import guarantee_of, privacy_of, render
from tests.reports.test_privacy_record import record as recorded
from tests.reports.test_report import BOTH, CONFIG, non_private, private

ALONE = Process(**described(1, on_one_node=True))
HERE, ACROSS = (Process(**described(2, on_one_node=here)) for here in (True, False))


def run(*sessions: Process) -> PrivateRun:
    return privacy_of(recorded()).replace(processes=processes_of(sessions))


def test_a_run_of_one_process_says_nothing_of_processes() -> None:
    assert processes_of([ALONE, ALONE]) is None
    assert process_rows(run()) == network_sentences(run()) == []


def test_each_group_of_processes_that_took_steps_is_named_once() -> None:
    assert processes_of([ALONE, HERE, HERE]) == (ALONE, HERE)
    assert [name for name, _ in process_rows(run(ALONE, HERE, HERE))] == ["processes", "processes"]


def test_what_epsilon_assumes_of_a_network_is_said_where_there_was_one() -> None:
    assert network_sentences(run(ALONE, HERE)) == []
    (sentence,) = network_sentences(run(HERE, ACROSS))
    assert "trusted or encrypted network" in sentence
    assert "loopback" in str(process_rows(run(HERE)))


def test_what_each_process_held_is_said() -> None:
    in_shards = HERE.replace(sharding=sharding(2, 1, accumulates_shards=True))
    (_, whole), (_, cut) = process_rows(run(HERE, in_shards))
    assert whole.startswith("2, each with the whole model (sharding: none);")
    assert "2, each with a shard of the model (sharding: fsdp, 2 shards, gradient sums" in cut


WATCHED = {**CONFIG, "audit": {"canaries": 20, "exposure_canaries": 0, "white_box": True}}
UNWATCHED = {**CONFIG, "audit": {**WATCHED["audit"], "white_box": False}}  # type: ignore[dict-item]
FOUND = {
    "view": "black box",
    "threat_model": "black box",
    "epsilon_lower": 3.5,
    "epsilon": 2.99,
    "delta": 0.001,
    "canaries": 100,
    "guesses": 100,
    "correct": 100,
    "confidence": 0.95,
    "largest_epsilon_lower": 3.5,
    "epsilon_lower_if_gaussian": 3.0,
    "other_mechanism": False,
    "p_value_of_plan": 0.5,
    "mechanism_confidence": 0.995,
    "choices": 1,
    "assumes_no_mixing": False,
}
SHORT = ("view", "epsilon_lower", "other_mechanism", "assumes_no_mixing")


def found(**changes: Any) -> dict[str, Any]:
    """What an audit by one view found, or by those given."""
    entry = {**FOUND, **changes}
    return {"views": [{name: entry[name] for name in SHORT}], **entry}


def audited(**changes: Any) -> dict[str, Any]:
    return {**private(), "audited": {"one_run": found(**changes)}}


def test_steps_held_against_canaries_are_marked_whether_or_not_it_was_audited() -> None:
    said = (
        "White box: the noisy gradient of each step was compared with the gradient of every canary"
    )
    assert said in render(WATCHED, private(), BOTH)
    assert said not in render(UNWATCHED, private(), BOTH)
    assert said not in render(CONFIG, private(), BOTH)


def test_canaries_in_a_run_without_privacy_are_marked() -> None:
    said = "Warning: the records of this run include canaries of audits, but the run is not private"
    assert said in render(UNWATCHED, non_private(), BOTH)
    assert said not in render(CONFIG, non_private(), BOTH)
    assert said not in render(UNWATCHED, private(), BOTH)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "**THE GUARANTEE IS CONTRADICTED: an audit found"),
        (
            {"epsilon_lower": 1.0, "other_mechanism": True},
            "**NOT THIS MECHANISM: an audit identified",
        ),
    ],
)
def test_what_contradicts_the_guarantee_leads_the_report_and_travels_with_the_model(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    privacy = audited(**changes)
    report = render(CONFIG, privacy, BOTH)
    assert guarantee_of(report).startswith(says) and "How to quote" not in report
    run = write_run(tmp_path / "run", privacy=privacy)
    card = render_card(read(run), EXPORTED, run)
    assert card.index(says) < card.index("-differentially private")


def test_an_audit_below_epsilon_alarms_nobody(tmp_path: Path) -> None:
    privacy = audited(epsilon_lower=2.99)
    run = write_run(tmp_path / "run", privacy=privacy)
    for text in (render(CONFIG, privacy, BOTH), render_card(read(run), EXPORTED, run)):
        assert "CONTRADICTED" not in text and "NOT THIS MECHANISM" not in text


@pytest.mark.parametrize("others", [False, True])
def test_what_a_verdict_on_the_mechanism_assumes_is_said_where_it_rests_on_that(
    others: bool,
) -> None:
    """White-box scores are tested as if canaries' signals did not mix; other views need not."""
    short = {"view": "a", "epsilon_lower": 3.5}
    views = [
        {**short, "other_mechanism": True, "assumes_no_mixing": True},
        {**short, "other_mechanism": others, "assumes_no_mixing": False},
    ]
    said = f"%, {NO_MIXING}"
    alarm = is_another_mechanism(parse(found(other_mechanism=True, views=views), GuessesInShort))
    assert alarm is not None and (said in alarm) is not others
    row = one_run_rows(parse(found(assumes_no_mixing=True), GuessesInShort))[-1]
    assert row[1] == f"yes (p = 0.5, {NO_MIXING})"


SPACE = {"train.learning_rate": (0.1, 0.2)}


def selected() -> dict:
    bound = {"epsilon": 2.98765, "accountant": ACCOUNTANT, "epsilons": {ACCOUNTANT: 2.98765}}
    chosen = as_json(selection_of(TrialCount(eta=1, gamma=0.1), space=SPACE))
    return {**private(), **bound, "selection": chosen}


def test_the_record_says_how_the_choice_was_made() -> None:
    selection = selected()["selection"]
    assert (selection["eta"], selection["gamma"]) == (1, 0.1)
    assert abs(selection["expected_trials"] - 10) < 1e-9
    assert selection["search_space"] == {"train.learning_rate": [0.1, 0.2]}


def test_the_report_leads_with_the_bound_and_says_what_it_covers() -> None:
    report = render(CONFIG, selected(), BOTH)
    (first, *_) = guarantee_of(report).splitlines()
    assert first.startswith("**(ε = 2.9877, ") and f"upper bound by {ACCOUNTANT}" in first
    assert "best of a secret random number of runs, 10 in expectation (eta 1, gamma" in report
    assert "duration of the search, which reveals the number of runs" in report
    assert "secret random number" not in render(CONFIG, private(), BOTH)
