"""A step leaves its fingerprint before it is in the ledger; a replayed one must have the same."""

import json
import os
import stat

import pytest
import torch

from dpft.files import LEDGER
from dpft.privacy.journal import JournaledLedger, ReplayError
from dpft.privacy.ledger import Ledger, read_ledger
from tests.privacy.test_ledger import MECHANISM, WRITTEN


@pytest.fixture
def paths(tmp_path):
    return tmp_path / LEDGER, tmp_path / "steps.jsonl"


def opened(paths, *, new=False, steps_done=0, environment=None):
    ledger, journal = paths
    taken = Ledger(ledger, plan=WRITTEN) if new else Ledger.reopen(ledger, read_ledger(ledger))
    environment = environment or {"threads": 1}
    return JournaledLedger(taken, journal, environment=environment, steps_done=steps_done)


def gradients(number):
    return [torch.tensor([float(number), 0.5]), torch.tensor([[1e-3]])]


def take(log, *numbers):
    for number in numbers:
        log.record_step(MECHANISM, gradients(number))


def journal_of(paths):
    return [json.loads(line) for line in paths[1].read_text().splitlines()]


def test_each_step_is_journaled_and_in_the_ledger_and_no_one_else_may_read_the_journal(paths):
    with opened(paths, new=True) as log:
        take(log, 1, 2)
        assert log.position == 2
    assert [entry["step"] for entry in journal_of(paths)] == [1, 2]
    assert read_ledger(paths[0]).steps == 2
    assert stat.S_IMODE(paths[1].stat().st_mode) == 0o600


def test_a_step_is_journaled_before_it_is_in_the_ledger(paths):
    log = opened(paths, new=True)
    log.ledger.append = lambda *_: (
        pytest.fail("the ledger came first") if not paths[1].read_text() else None
    )
    take(log, 1)


def test_a_steps_entry_is_synchronized_before_its_ledger_line_is_begun(paths, monkeypatch):
    """Else a power cut leaves a ledger whose last step cannot be held against what it was."""
    order = []

    def synchronize(descriptor):
        size = os.fstat(descriptor).st_size
        is_journal = os.path.samestat(os.fstat(descriptor), paths[1].stat())
        order.append(("synchronized", size) if is_journal else "the ledger synchronized")

    with opened(paths, new=True) as log:
        append = log.ledger.append
        log.ledger.append = lambda *given: order.append("the ledger begun") or append(*given)
        monkeypatch.setattr(os, "fsync", synchronize)
        for number in (1, 2):
            order.clear()
            take(log, number)
            entry = ("synchronized", paths[1].stat().st_size)
            assert order[:2] == [entry, "the ledger begun"]
            assert set(order[2:]) == {"the ledger synchronized"}


def test_replayed_steps_that_come_out_the_same_are_not_recorded_again(paths):
    with opened(paths, new=True) as log:
        take(log, 1, 2)
    with opened(paths, steps_done=1) as log:
        take(log, 2, 3)
    assert [entry["step"] for entry in journal_of(paths)] == [1, 2, 3]
    assert read_ledger(paths[0]).steps == 3


@pytest.mark.parametrize("change", ["gradients", "environment"])
def test_a_replayed_step_that_is_another_is_refused_and_leaves_no_trace(paths, change):
    with opened(paths, new=True) as log:
        take(log, 1)
    before = [path.read_text() for path in paths]
    environment = {"threads": 2} if change == "environment" else None
    with (
        opened(paths, environment=environment) as log,
        pytest.raises(ReplayError, match="did not come out as it was"),
    ):
        take(log, 5 if change == "gradients" else 1)
    assert [path.read_text() for path in paths] == before


def crashed_after_journaling(paths):
    with opened(paths, new=True) as log:
        take(log, 1)
        log.ledger.append = lambda *_: None
        take(log, 2)


def test_a_step_that_a_crash_kept_out_of_the_ledger_must_come_out_the_same_too(paths):
    crashed_after_journaling(paths)
    with opened(paths, steps_done=1) as log, pytest.raises(ReplayError):
        take(log, 7)
    with opened(paths, steps_done=1) as log:
        take(log, 2)
    assert read_ledger(paths[0]).steps == 2 and len(journal_of(paths)) == 2


def test_an_abandoned_step_counts_and_is_never_taken_again(paths):
    crashed_after_journaling(paths)
    with opened(paths, steps_done=1) as log:
        log.count_abandoned_step(MECHANISM)
        assert log.position == 2
        take(log, 9)
    assert [entry["step"] for entry in journal_of(paths)] == [1, 2, 3]
    assert read_ledger(paths[0]).steps == 3


def test_an_abandoned_step_that_the_journal_lacks_is_written_into_it(paths):
    with opened(paths, new=True) as log:
        take(log, 1)
        log.count_abandoned_step(MECHANISM)
    assert journal_of(paths)[1] == {"step": 2, "abandoned": True}


def test_what_follows_a_line_that_broke_off_stands_on_a_line_of_its_own(paths):
    with opened(paths, new=True) as log:
        take(log, 1)
    with paths[1].open("a") as file:
        file.write('{"step": 2, "su')
    with opened(paths, steps_done=1) as log:
        take(log, 2)
    lines = paths[1].read_text().splitlines()
    assert lines[1] == '{"step": 2, "su' and json.loads(lines[2])["step"] == 2
