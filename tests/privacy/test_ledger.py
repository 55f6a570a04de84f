import json
import os
import re

import pytest

from dpft.errors import StateError
from dpft.privacy.ledger import (
    GENESIS,
    Ledger,
    check_ledger,
    first_line,
    hash_of,
    read_ledger,
)
from dpft.strict_model import as_json
from tests.privacy.test_plan import plan
from tests.rejections import rejects

PLAN = plan(noise_multiplier=1.5, sample_rate=0.1)
MECHANISM = PLAN.entry_at(0)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, plan=PLAN) as ledger:
        for step in (1, 2, 3):
            ledger.append(step, MECHANISM)
        ledger.close()
    return path


def test_what_was_written_is_read_back(path):
    record = read_ledger(path)
    assert (record.steps, record.lines, record.closed) == (3, 5, True)
    assert all(mechanism == MECHANISM for mechanism in record.mechanisms)


def test_a_line_is_on_disk_when_append_returns(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, plan=PLAN) as ledger:
        ledger.append(1, MECHANISM)
        record = read_ledger(path)
        assert record.steps == 1 and not record.closed
        assert record.head == ledger.head != GENESIS


def test_lines_hold_step_mechanism_and_the_hash_of_the_line_before_and_nothing_else(path):
    first, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert set(first) == {"run_id", "schema_version", "previous", "plan"}
    assert first["plan"] == as_json(PLAN)
    assert [set(line) for line in lines] == [{"step", "mechanism", "previous"}] * 3 + [
        {"closed", "previous"}
    ]


SPOILED = {
    "another plan": (lambda lines: [first_line("0" * 32, PLAN).text, *lines[1:]], 2),
    "the first line twice": (lambda lines: [lines[0], *lines], 2),
    "no first line": (lambda lines: lines[1:], 1),
    "lines in another order": (lambda lines: [lines[1], lines[0], *lines[2:]], 1),
    "an edited step": (lambda lines: [lines[0], lines[1].replace("1.5", "9.5"), *lines[2:]], 2),
    "a step less": (lambda lines: [lines[0], *lines[2:]], 2),
    "a damaged line": (lambda lines: [*lines[:3], lines[3][:-5], *lines[4:]], 4),
    "an empty line": (lambda lines: [lines[0], "", *lines[2:]], 2),
    "a deeply nested line": (lambda lines: [lines[0], "[" * 100_000, *lines[2:]], 2),
    "a line after the closing one": (lambda lines: [*lines, lines[0]], 6),
}
"""Accidental edits, and the line that the error names."""


@pytest.mark.parametrize("name", SPOILED)
def test_a_spoiled_ledger_is_rejected_by_line_number(path, name):
    spoil, line = SPOILED[name]
    path.write_text("\n".join(spoil(path.read_text().splitlines())) + "\n")
    with pytest.raises(StateError, match=rf"ledger\.jsonl, line {line}: ") as error:
        read_ledger(path)
    assert error.value.exit_code == 3


@pytest.mark.parametrize(
    "change", [{"name": "laplace"}, {"noise_multiplier": 9.0}, {"sensitivity": 0.2}], ids=str
)
def test_a_step_that_is_not_of_the_plan_is_refused_though_its_chain_holds(path, change):
    first, line, *_ = path.read_text().splitlines()
    entry = json.loads(line)
    entry["mechanism"] |= change
    path.write_text(f"{first}\n{json.dumps(entry, sort_keys=True)}\n")
    with pytest.raises(StateError, match=r"ledger\.jsonl, line 2: "):
        read_ledger(path)


def test_ledgers_of_one_plan_have_a_name_and_heads_of_their_own(tmp_path):
    """Their other lines say the same: three demos and the gallery's had one head."""
    records = []
    for name in ("a", "b"):
        with Ledger(tmp_path / name, plan=PLAN) as ledger:
            ledger.append(1, MECHANISM)
            ledger.close()
        records.append(read_ledger(tmp_path / name))
    a, b = records
    assert a.mechanisms == b.mechanisms
    assert a.run_id != b.run_id and re.fullmatch("[0-9a-f]{32}", a.run_id)
    assert not set(a.heads[1:]) & set(b.heads[1:])


def test_the_first_line_is_known_before_it_is_written_and_written_with_the_first_step(tmp_path):
    """So a checkpoint of step 0 has its head before the file has a line."""
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, plan=PLAN) as ledger:
        lines, head, run_id = ledger.lines, ledger.head, ledger.run_id
        assert path.read_bytes() == b""
        ledger.append(1, MECHANISM)
    record = read_ledger(path)
    assert (lines, head) == (1, record.heads[1]) and record.run_id == run_id
    assert record.lines == 2


@pytest.mark.parametrize("torn", ["", '{"plan": {"acc', first_line("1" * 32, PLAN).text])
def test_a_first_line_that_broke_off_is_no_step_and_is_written_whole(tmp_path, torn):
    path = tmp_path / "ledger.jsonl"
    path.write_text(torn)
    record = read_ledger(path)
    assert (record.lines, record.counted_steps, record.run_id) == (0, 0, None)
    with pytest.raises(ValueError):
        Ledger.reopen(path, record)
    with Ledger.reopen(path, record, plan=PLAN, run_id="2" * 32) as ledger:
        ledger.append(1, MECHANISM)
    found = read_ledger(path)
    assert (found.run_id, found.steps, found.torn_at) == ("2" * 32, 1, None)


def as_before(path):
    """Write a ledger anew as dpft 0.2.0 wrote it: without the line that names the run."""
    entries = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    head, lines = GENESIS, []
    for entry in entries:
        lines.append(json.dumps(entry | {"previous": head}, sort_keys=True) + "\n")
        head = hash_of(lines[-1][:-1])
    path.write_text("".join(lines))


def test_a_ledger_of_an_earlier_version_is_refused_and_the_version_that_reads_it_named(path):
    as_before(path)
    with rejects(str(path), 0):
        read_ledger(path)


def test_a_second_ledger_in_one_folder_is_refused(path):
    with rejects("hydra.run.dir"):
        Ledger(path, plan=PLAN)


def run_of(plan, path, steps, *, close=True):
    with Ledger(path, plan=plan) as ledger:
        for step in range(steps):
            ledger.append(step + 1, plan.entry_at(step))
        if close:
            ledger.close()
    return read_ledger(path)


def test_only_a_closed_ledger_of_all_the_plans_steps_passes(tmp_path):
    check_ledger(run_of(plan(steps=3), tmp_path / "good", 3), plan(steps=3))
    with pytest.raises(StateError, match="3 steps .* 2 steps"):
        check_ledger(run_of(plan(steps=3), tmp_path / "short", 2), plan(steps=3))
    with pytest.raises(StateError, match="not closed"):
        check_ledger(run_of(plan(steps=3), tmp_path / "open", 3, close=False), plan(steps=3))


def test_a_ledger_of_another_mechanism_is_refused(tmp_path):
    record = run_of(plan(noise_multiplier=9.0), tmp_path / "ledger", 3)
    with pytest.raises(StateError):
        check_ledger(record, plan())


def test_an_empty_ledger_holds_no_step(tmp_path):
    (tmp_path / "ledger.jsonl").write_text("")
    assert read_ledger(tmp_path / "ledger.jsonl").counted_steps == 0


@pytest.mark.parametrize("torn", ['{"mech', '{"mechanism": {}, "previous": "0", "step": 4}'])
def test_a_torn_last_line_counts_as_a_step_and_the_next_is_written_in_its_place(tmp_path, torn):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, plan=PLAN) as ledger:
        ledger.append(1, MECHANISM)
    whole = path.read_text()
    path.write_text(whole + torn)
    record = read_ledger(path)
    assert (record.steps, record.counted_steps, record.lines) == (1, 2, 2)
    with Ledger.reopen(path, record) as ledger:
        assert path.read_text() == whole + torn
        ledger.append(2, MECHANISM)
    assert read_ledger(path).counted_steps == 2


def test_a_torn_line_after_the_closing_one_is_refused(path):
    path.write_text(path.read_text() + '{"mech')
    with pytest.raises(StateError, match="line 6: "):
        read_ledger(path)


@pytest.mark.parametrize("version", [0, 1, 3])
def test_a_ledger_of_another_form_is_refused_by_its_version(path, version):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    text = "".join(json.dumps({**line, "schema_version": version}) + "\n" for line in lines)
    path.write_text(text)
    with rejects(str(path), version):
        read_ledger(path)


def test_each_line_is_synchronized_when_append_returns_and_so_is_the_closing_one(
    tmp_path, monkeypatch
):
    """A crash of the machine must not take a line whose step moved the weights."""
    path, synchronized = tmp_path / "ledger.jsonl", []
    monkeypatch.setattr(os, "fsync", lambda _: synchronized.append(path.read_bytes()))
    with Ledger(path, plan=PLAN) as ledger:
        for step in (1, 2):
            ledger.append(step, MECHANISM)
            assert synchronized[-1] == path.read_bytes()
        ledger.close()
    assert synchronized[-1] == path.read_bytes()
    lines = {len(content.splitlines()) for content in synchronized}
    assert lines == {0, 1, 2, 3, 4}, "no line waits for the next"
