"""A ledger is whole: what ``private/`` knows of a run's steps is in it."""

import json
import os
import stat
from pathlib import Path

import pytest
import torch

from dpft.errors import InputError, StateError
from dpft.privacy.journal import JournaledLedger, ReplayError, read_journal, read_run_ledger
from dpft.privacy.ledger import Ledger, read_ledger
from dpft.run_folder import LEDGER
from dpft.strict_model import as_json
from tests.privacy.test_ledger import MECHANISM, PLAN


def make(
    folder: Path, *, steps: int, journaled: list[int], closed: bool = False, lodged: int = 0
) -> Path:
    """Return a run's folder: a ledger, a journal of these steps, a checkpoint after a line."""
    with Ledger(folder / "ledger.jsonl", plan=PLAN) as ledger:
        for step in range(1, steps + 1):
            ledger.append(step, MECHANISM)
        if closed:
            ledger.close()
    state = folder / "private" / "checkpoints" / f"step-{lodged:08d}" / "state.json"
    state.parent.mkdir(parents=True)
    record = read_ledger(folder / "ledger.jsonl")
    lines = record.line_of(lodged) if record.lines else 0
    write_state(state, lines, record.heads[min(lines, record.lines)], run_id=record.run_id)
    lines = [json.dumps({"step": step, "sum": "0x0p+0"}) + "\n" for step in journaled]
    (folder / "private" / "steps.jsonl").write_text("".join(lines))
    return folder


def write_state(path: Path, lines: int, head: str, run_id: str | None = None) -> None:
    ledger = {"lines": lines, "head": head, "position": 0}
    known = {"ledger": ledger, "run_id": run_id, "plan": as_json(PLAN)}
    path.write_text(json.dumps({"schema_version": 2, "run": known}))


def cut(folder: Path, lines: int) -> None:
    path = folder / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))


def upto(step: int) -> list[int]:
    return list(range(1, step + 1))


def test_trust_rule_9_a_journal_two_steps_ahead_of_the_ledger_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path, steps=7, journaled=upto(7), lodged=4)
    cut(folder, 6)
    with pytest.raises(StateError, match="line 7: ") as error:
        read_run_ledger(folder)
    assert error.value.exit_code == 3


def test_trust_rule_9_a_step_that_only_the_journal_has_counts_as_taken(tmp_path: Path) -> None:
    """A crash leaves it, and so does who cuts the last line: it cannot be told which."""
    record = read_run_ledger(make(tmp_path, steps=4, journaled=upto(5)))
    assert record is not None
    assert (record.steps, record.counted_steps) == (4, 5)


def test_a_step_with_a_torn_line_and_a_journal_entry_counts_once(tmp_path: Path) -> None:
    folder = make(tmp_path, steps=4, journaled=upto(5))
    with (folder / "ledger.jsonl").open("a") as file:
        file.write('{"mechanism": {"na')
    record = read_run_ledger(folder)
    assert record is not None and record.counted_steps == 5


@pytest.mark.parametrize("journaled", [upto(4), None])
def test_a_journal_that_lacks_a_step_of_the_ledger_is_refused(
    tmp_path: Path, journaled: list[int] | None
) -> None:
    folder = make(tmp_path, steps=5, journaled=journaled or [])
    if journaled is None:
        (folder / "private" / "steps.jsonl").unlink()
    with pytest.raises(StateError, match=r"steps\.jsonl .* 5 noisy steps"):
        read_run_ledger(folder)


def test_a_closed_ledger_has_every_step_of_the_journal(tmp_path: Path) -> None:
    """No crash parts the two once the run has ended: somebody closed a cut ledger anew."""
    with pytest.raises(StateError, match="line 6: "):
        read_run_ledger(make(tmp_path, steps=4, journaled=upto(5), closed=True))


def test_the_ledger_has_what_any_checkpoint_was_written_after(tmp_path: Path) -> None:
    folder = make(tmp_path, steps=5, journaled=upto(5), lodged=3)
    other = folder / "private" / "checkpoints" / "step-00000005" / "state.json"
    other.parent.mkdir()
    write_state(other, 7, "0" * 64)
    with pytest.raises(StateError, match="line 7: .*step-00000005"):
        read_run_ledger(folder)
    write_state(other, 6, "f" * 64)
    with pytest.raises(StateError, match="line 6: .*f{64}"):
        read_run_ledger(folder)
    other.write_text(json.dumps({"schema_version": 2, "run": {"ledger": {"lines": "?"}}}))
    with pytest.raises(StateError, match=r"state\.json"):
        read_run_ledger(folder)
    other.write_text(json.dumps({"schema_version": 1}))
    with pytest.raises(InputError, match="schema_version"):
        read_run_ledger(folder)


@pytest.mark.parametrize("left", ["", '{"plan": {"acc'])
@pytest.mark.parametrize("journaled", [0, 1])
def test_a_run_may_break_off_between_its_first_checkpoint_and_its_first_line(
    tmp_path: Path, left: str, journaled: int
) -> None:
    """The checkpoint of step 0 has the first line's head before the ledger has a line."""
    folder = make(tmp_path, steps=3, journaled=upto(3))
    state = folder / "private/checkpoints/step-00000000/state.json"
    record = read_ledger(folder / "ledger.jsonl")
    write_state(state, 1, record.heads[1], record.run_id)
    assert read_run_ledger(folder) is not None
    (folder / "ledger.jsonl").write_text(left)
    (folder / "private/steps.jsonl").write_text('{"step": 1}\n' * journaled)
    found = read_run_ledger(folder)
    assert found is not None and (found.lines, found.counted_steps) == (0, journaled)
    (folder / "private/steps.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    with pytest.raises(StateError, match="line 2: "):
        read_run_ledger(folder)


def test_a_ledger_that_lost_its_lines_after_a_step_is_refused(tmp_path: Path) -> None:
    folder = make(tmp_path, steps=3, journaled=[], lodged=1)
    (folder / "ledger.jsonl").write_text("")
    with pytest.raises(StateError, match="line 1: "):
        read_run_ledger(folder)


def test_trust_rule_9_an_edited_name_is_refused_though_its_chain_holds(tmp_path: Path) -> None:
    """Every line was written anew under another run's name."""
    folder = make(tmp_path, steps=3, journaled=upto(3), lodged=2)
    (folder / "ledger.jsonl").unlink()
    with Ledger(folder / "ledger.jsonl", run_id="0" * 32, plan=PLAN) as ledger:
        for step in upto(3):
            ledger.append(step, MECHANISM)
    with pytest.raises(StateError, match="line 3: "):
        read_run_ledger(folder)


def test_a_removed_ledger_is_missed(tmp_path: Path) -> None:
    folder = make(tmp_path, steps=0, journaled=[])
    (folder / "ledger.jsonl").unlink()
    with pytest.raises(StateError, match=r"ledger\.jsonl, line 1: "):
        read_run_ledger(folder)
    (folder / "private/checkpoints/step-00000000/state.json").unlink()
    (folder / "private/steps.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    with pytest.raises(StateError, match=r"steps\.jsonl has 2 "):
        read_run_ledger(folder)


def test_a_run_without_privacy_has_no_ledger_and_misses_none(tmp_path: Path) -> None:
    state = tmp_path / "private" / "checkpoints" / "step-00000002" / "state.json"
    state.parent.mkdir(parents=True)
    state.write_text(json.dumps({"schema_version": 2, "run": {}}))
    (tmp_path / "private" / "steps.jsonl").write_text("")
    assert read_run_ledger(tmp_path) is None


def test_without_private_the_ledger_is_read_as_it_is(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.jsonl", plan=PLAN) as ledger:
        ledger.append(1, MECHANISM)
    record = read_run_ledger(tmp_path)
    assert record == read_ledger(tmp_path / "ledger.jsonl")


def test_a_run_may_go_on_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps are taken between the look at the journal and the one at the ledger."""
    folder = make(tmp_path, steps=2, journaled=upto(2))

    def goes_on(path: Path):
        for step in (3, 4, 5):
            with (folder / "private" / "steps.jsonl").open("a") as file:
                file.write(json.dumps({"step": step}) + "\n")
            with Ledger.reopen(path, read_ledger(path)) as ledger:
                ledger.append(step, MECHANISM)
        return read_ledger(path)

    monkeypatch.setattr("dpft.privacy.journal.read_ledger", goes_on)
    record = read_run_ledger(folder)
    assert record is not None and record.counted_steps == 5


def test_a_step_stands_twice_in_the_journal_after_a_crash_before_its_ledger_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "sum": "a"}\n{"st\n{"step": 2, "sum": "b"}\n{"step"')
    assert read_journal(path) == {1: {"step": 1}, 2: {"step": 2, "sum": "b"}}
    assert read_journal(tmp_path / "nowhere") == {}


@pytest.mark.parametrize(
    ("steps", "line"), [([1, 3], 2), ([2, 3], 1), ([1, 2, 1], 3), ([0, 1], 1), ([1, 2, 4], 3)]
)
def test_a_gap_in_the_journals_own_steps_is_refused_by_line_number(
    tmp_path: Path, steps: list[int], line: int
) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in steps))
    with pytest.raises(StateError, match=f"steps.jsonl, line {line}: "):
        read_journal(path)


NO_STEPS_ENTRIES = {
    "a fraction": '{"step": 1.5}',
    "no step": "{}",
    "nested": "[" * 200_000,
}


@pytest.mark.parametrize("case", NO_STEPS_ENTRIES)
def test_a_whole_line_of_the_journal_that_is_no_steps_is_refused(tmp_path: Path, case: str) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(f'{{"step": 1}}\n{NO_STEPS_ENTRIES[case]}\n')
    with pytest.raises(StateError, match=r"steps\.jsonl, line 2: "):
        read_journal(path)


def test_only_a_step_and_eight_digits_is_a_checkpoint(tmp_path: Path) -> None:
    """Anybody's copy beside the checkpoints must not stop the run for good."""
    folder = make(tmp_path, steps=2, journaled=upto(2), lodged=2)
    for stray in ("step-zzz", "step-00000002-old", "step-2"):
        state = folder / "private" / "checkpoints" / stray / "state.json"
        state.parent.mkdir()
        write_state(state, 5, "0" * 64)
    record = read_run_ledger(folder)
    assert record is not None and record.steps == 2


@pytest.fixture
def paths(tmp_path):
    return tmp_path / LEDGER, tmp_path / "steps.jsonl"


def opened(paths, *, new=False, steps_done=0, environment=None):
    ledger, journal = paths
    taken = Ledger(ledger, plan=PLAN) if new else Ledger.reopen(ledger, read_ledger(ledger))
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
        pytest.raises(ReplayError),
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
