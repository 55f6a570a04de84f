"""A witness is handed heads ten steps apart or more, on one grid of the run's steps."""

import json
from types import SimpleNamespace

import pytest

from dpft.privacy.ledger import read_ledger
from dpft.privacy.witness import Handover, WitnessFile
from dpft.training.listeners import HeadWitness, PublicStep
from dpft.training.private_run import train_privately
from tests.training.toy import plan, privacy, session, spent


class Kept:
    """A handover that keeps the numbers of lines it is given."""

    def __init__(self) -> None:
        self.lines: list[int] = []

    def hand_over(self, lines: int, head: str) -> None:
        self.lines.append(lines)


def handed(first: int, last: int, *, every: int | None) -> list[int]:
    """Returns after which steps a session of the steps ``first`` to ``last`` hands over a head."""
    kept, ledger = Kept(), SimpleNamespace(lines=0, head="f" * 64)
    witness = HeadWitness(kept, ledger, every=every)
    witness.begin(first - 1)
    for step in range(first, last + 1):
        ledger.lines = step
        witness.after_step(
            PublicStep(step=step, last_step=last, learning_rate=0.1, epsilon=spent(step))
        )
    return kept.lines


@pytest.mark.parametrize(
    ("first", "last", "every", "expected"),
    [
        (1, 40, None, [10, 20, 30, 40]),
        (1, 40, 3, [10, 20, 30, 40]),
        (1, 100, 25, [30, 60, 100]),
        (1, 37, None, [10, 20, 37]),
        (1, 9, None, []),
        (16, 40, None, [30, 40]),
        (34, 40, None, []),
        (31, 40, None, [40]),
    ],
)
def test_trust_rule_7_heads_are_ten_steps_apart_or_more(
    first: int, last: int, every: int | None, expected: list[int]
) -> None:
    assert handed(first, last, every=every) == expected


def test_trust_rule_7_no_two_heads_of_any_session_show_fewer_than_ten_steps() -> None:
    for last in range(1, 60):
        for first in range(1, last + 1):
            for every in (None, 7, 15):
                steps = [first - 1, *handed(first, last, every=every)]
                assert all(b - a >= 10 for a, b in zip(steps, steps[1:], strict=False))


def test_a_run_hands_over_the_heads_of_its_ledger_while_it_trains(tmp_path) -> None:
    folder = tmp_path / "run"
    own = session(folder, checkpoint_every=5)
    handover = Handover(WitnessFile(tmp_path / "heads"), folder, run_id="a" * 32)
    object.__setattr__(own, "handover", handover)
    train_privately(own, plan(steps=20), privacy(), epsilon_after=spent)
    record = read_ledger(folder / "ledger.jsonl")
    assert record.run_id == "a" * 32, "the ledger has the name that its witness knows"
    entries = [json.loads(line) for line in (tmp_path / "heads").read_text().splitlines()]
    found = [(entry["lines"], entry["head"]) for entry in entries]
    assert found == [(11, record.heads[11]), (21, record.heads[21])]
