"""What reports and cards say of canaries and of audits, before anything else where it alarms."""

from pathlib import Path
from typing import Any

import pytest

from dpft.records.audits import GuessesInShort
from dpft.records.form import parse
from dpft.reports.run.audited import is_another_mechanism, one_run_rows
from dpft.reports.run.card import render_card
from dpft.reports.run.run_record import read_run
from tests.reports.run.folders import write_run
from tests.reports.run.plain import render
from tests.reports.run.test_report import BOTH, CONFIG, non_private, private

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
    "views": [],
}


def audited(**changes: Any) -> dict[str, Any]:
    return {**private(), "audited": {"one_run": {**FOUND, **changes}}}


def test_steps_held_against_canaries_are_marked_whether_or_not_it_was_audited() -> None:
    said = "White box: each step's noisy gradient was held against every canary's own"
    assert said in render(WATCHED, private(), BOTH)
    assert said not in render(UNWATCHED, private(), BOTH)
    assert said not in render(CONFIG, private(), BOTH)


def test_canaries_in_a_run_without_privacy_are_marked() -> None:
    said = "Warning: canaries of audits are among the records of this run, which is not private"
    assert said in render(UNWATCHED, non_private(), BOTH)
    assert said not in render(CONFIG, non_private(), BOTH)
    assert said not in render(UNWATCHED, private(), BOTH)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "**THE GUARANTEE IS CONTRADICTED: an audit found"),
        ({"epsilon_lower": 1.0, "other_mechanism": True}, "**NOT THIS MECHANISM: an audit found"),
    ],
)
def test_what_contradicts_the_guarantee_leads_the_report_and_travels_with_the_model(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    privacy = audited(**changes)
    assert render(CONFIG, privacy, BOTH).startswith(says)
    run = write_run(tmp_path / "run", privacy=privacy)
    card = render_card(read_run(run), run)
    assert card.index(says) < card.index("-differentially private")


def test_an_audit_below_epsilon_alarms_nobody(tmp_path: Path) -> None:
    privacy = audited(epsilon_lower=2.99)
    run = write_run(tmp_path / "run", privacy=privacy)
    for text in (render(CONFIG, privacy, BOTH), render_card(read_run(run), run)):
        assert "CONTRADICTED" not in text and "NOT THIS MECHANISM" not in text


@pytest.mark.parametrize("others", [False, True])
def test_what_a_verdict_on_the_mechanism_assumes_is_said_where_it_rests_on_that(
    others: bool,
) -> None:
    """White-box scores are tested as if canaries' signals did not mix; other views need not."""
    short = {"view": "a", "epsilon_lower": 1.0}
    views = [
        {**short, "other_mechanism": True, "assumes_no_mixing": True},
        {**short, "other_mechanism": others, "assumes_no_mixing": False},
    ]
    said = "by chance, if what is seen of one canary tells nothing of another's coin"
    alarm = is_another_mechanism(
        parse({**FOUND, "other_mechanism": True, "views": views}, GuessesInShort)
    )
    assert alarm is not None and (said in alarm) is not others
    row = one_run_rows(parse({**FOUND, "assumes_no_mixing": True}, GuessesInShort))[-1]
    assert row[1] == "yes (p = 0.5, if what is seen of one canary tells nothing of another's coin)"
