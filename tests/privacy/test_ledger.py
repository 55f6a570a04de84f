import json
import os
import re

import pytest

from dpft.errors import InputError, StateError
from dpft.privacy.ledger import (
    GENESIS,
    Ledger,
    check_ledger,
    first_line,
    hash_of,
    read_ledger,
)
from dpft.privacy.mechanisms.histogram import GaussianHistogram
from dpft.privacy.plan import HistogramPlan
from dpft.strict_model import as_json
from tests.privacy.test_plan import plan

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


def edit(lines):
    lines[1] = lines[1].replace("1.5", "9.5")


def edit_run_id(lines):
    lines[0] = first_line("0" * 32, PLAN).text


def header_twice(lines):
    lines.insert(1, lines[0])


def header_twice_in_the_chain(lines):
    second = json.loads(lines[0]) | {"previous": hash_of(lines[0])}
    lines.insert(1, json.dumps(second, sort_keys=True))


def header_gone(lines):
    del lines[0]


def header_after_a_step(lines):
    lines[0], lines[1] = lines[1], lines[0]


def header_of_other_keys(lines):
    lines[0] = json.dumps(json.loads(lines[0]) | {"note": "mine"}, sort_keys=True)


def header_without_a_version(lines):
    entry = json.loads(lines[0])
    del entry["schema_version"]
    lines[0] = json.dumps(entry, sort_keys=True)


def run_id_that_is_none(lines):
    lines[0] = lines[0].replace(json.loads(lines[0])["run_id"], "mine")


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (edit_run_id, 2),
        (header_twice, 2),
        (header_twice_in_the_chain, 2),
        (header_gone, 1),
        (header_after_a_step, 1),
        (header_of_other_keys, 1),
        (header_without_a_version, 1),
        (run_id_that_is_none, 1),
    ],
)
def test_a_first_line_that_is_not_what_was_written_is_refused(path, spoil, line):
    lines = path.read_text().splitlines()
    spoil(lines)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(StateError, match=rf"ledger\.jsonl, line {line}: "):
        read_ledger(path)


@pytest.mark.parametrize(
    "change",
    [
        {"delta": "1e-5"}, {"delta": float("nan")}, {"delta": 2.0}, {"steps": 3.0}, {"steps": 4},
        {
            "expected_batch_size": 10**400,
            "mechanism": {"name": "banded", "bands": 1, "coefficients": [1.0]},
        },
        {"sample_rate": 1.5}, {"noise_multiplier": 10**400}, {"num_examples": 0}, {"unit": []},
        {"phases": {}}, {"phases": []}, {"phases": [1]}, {"calibration": 3},
        {"tokenizer": {"a": 1}}, {"reproducible": "no"}, {"more": 1}, {"histogram": {}},
        {"calibration": {"accountant": [], "epsilon": 1.0, "grid": "g", "target": None}},
        {"calibration": {"accountant": "prv", "epsilon": 1.0, "grid": "g", "target": "8"}},
        {"tokenizer": {"run_id": [], "lines": 3, "head": "a", "delta": 0.1, "mechanism": {}}},
        {"tokenizer": {"run_id": "a", "lines": 3, "head": "a", "delta": "x", "mechanism": {}}},
        {
            "tokenizer": {
                "run_id": "a", "lines": 3, "head": "a", "delta": 0.9, "mechanism": {"delta": 0.1},
            }
        },
        {
            "phases": [
                {"method": "full", "steps": steps, "max_grad_norm": 1.0, "sensitivity": 1.0}
                for steps in (5, -2)
            ]
        },
        {"delta_source": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_plan_that_dpft_does_not_write_is_refused(path, change):
    """Whoever owns the file can write any plan into it, and its hashes anew."""
    entry = json.loads(path.read_text().splitlines()[0])
    entry["plan"] |= change
    path.write_text(json.dumps(entry, sort_keys=True) + "\n")
    with pytest.raises(StateError, match="line 1: the ledger is broken here"):
        read_ledger(path)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "laplace"}, {"noise_multiplier": 0}, {"noise_multiplier": True},
        {"noise_multiplier": "1.5"}, {"noise_multiplier": 10**400},
        {"noise_multiplier": float("nan")}, {"noise_multiplier": 9.0}, {"sample_rate": 0},
        {"sample_rate": 1.5}, {"sample_rate": None}, {"sensitivity": 0.2}, {"stream": 0},
        {"bands": 1}, {"more": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_step_that_is_not_of_the_plan_is_refused_though_its_chain_holds(path, change):
    first, line, *_ = path.read_text().splitlines()
    entry = json.loads(line)
    entry["mechanism"] |= change
    path.write_text(f"{first}\n{json.dumps(entry, sort_keys=True)}\n")
    with pytest.raises(StateError, match=r"ledger\.jsonl, line 2: "):
        read_ledger(path)


@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": 9.0}, {"threshold": 1.0}, {"noise_std": 80.0}, {"delta": "x"},
        {"words_per_record": None}, {"words_per_record": 10**400},
    ],
    ids=str,
)  # fmt: skip
def test_a_histogram_whose_numbers_do_not_go_together_is_refused(tmp_path, change):
    path = tmp_path / "ledger.jsonl"
    histogram = GaussianHistogram(
        noise_std=40.0, l2_cap=4.0, linf_cap=1.0, words_per_record=64, delta=1e-6, num_examples=9
    )
    own = HistogramPlan(histogram=histogram, num_examples=9, delta=1e-6)
    with Ledger(path, plan=own) as ledger:
        ledger.append(1, histogram)
    first, step = [json.loads(line) for line in path.read_text().splitlines()]
    assert read_ledger(path).mechanisms == (histogram,)
    step["mechanism"] |= change
    path.write_text(f"{json.dumps(first, sort_keys=True)}\n{json.dumps(step, sort_keys=True)}\n")
    with pytest.raises(StateError, match="line 2: expected a noisy step"):
        read_ledger(path)
    first["plan"]["histogram"] |= change
    path.write_text(json.dumps(first, sort_keys=True) + "\n")
    with pytest.raises(StateError, match="line 1: the ledger is broken here"):
        read_ledger(path)


def test_a_closing_line_must_say_that_it_is_one(path):
    *lines, closing = path.read_text().splitlines()
    entry = json.loads(closing)
    del entry["closed"]
    path.write_text("\n".join([*lines, json.dumps(entry)]) + "\n")
    with pytest.raises(StateError, match="line 5: "):
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
    with pytest.raises(ValueError, match="must be given its first one"):
        Ledger.reopen(path, record)
    with Ledger.reopen(path, record, plan=PLAN, run_id="2" * 32) as ledger:
        ledger.append(1, MECHANISM)
    found = read_ledger(path)
    assert (found.run_id, found.steps, found.torn_at) == ("2" * 32, 1, None)


def as_before(path):
    """Writes a ledger anew as dpft 0.2.0 wrote it: without the line that names the run."""
    entries = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    head, lines = GENESIS, []
    for entry in entries:
        lines.append(json.dumps(entry | {"previous": head}, sort_keys=True) + "\n")
        head = hash_of(lines[-1][:-1])
    path.write_text("".join(lines))


def test_a_ledger_of_an_earlier_version_is_refused_and_the_version_that_reads_it_named(path):
    as_before(path)
    with pytest.raises(InputError, match=r"one that dpft 0\.3\.0 or before wrote"):
        read_ledger(path)


def test_the_number_of_a_steps_line(path):
    assert read_ledger(path).line_of(1) == 2


def swap(lines):
    lines[0], lines[1] = lines[1], lines[0]


def cut(lines):
    del lines[1]


def damage(lines):
    lines[3] = lines[3][:-5]


def go_on_after_closing(lines):
    lines.append(lines[0])


@pytest.mark.parametrize(
    ("spoil", "line"), [(edit, 2), (swap, 1), (cut, 2), (damage, 4), (go_on_after_closing, 6)]
)
def test_a_spoilt_ledger_is_refused_by_line_number(path, spoil, line):
    lines = path.read_text().splitlines()
    spoil(lines)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(StateError, match=f"line {line}:") as error:
        read_ledger(path)
    assert error.value.exit_code == 3


def test_a_second_ledger_in_one_folder_is_refused(path):
    with pytest.raises(InputError, match=r"hydra\.run\.dir"):
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
    with pytest.raises(StateError, match="must hold 3 steps and be closed, got 2 steps"):
        check_ledger(run_of(plan(steps=3), tmp_path / "short", 2), plan(steps=3))
    with pytest.raises(StateError, match="not closed"):
        check_ledger(run_of(plan(steps=3), tmp_path / "open", 3, close=False), plan(steps=3))


def test_a_ledger_of_another_mechanism_is_refused(tmp_path):
    record = run_of(plan(noise_multiplier=9.0), tmp_path / "ledger", 3)
    with pytest.raises(StateError, match="must hold the plan of the run, got another"):
        check_ledger(record, plan())


def duplicate(lines):
    lines.insert(1, lines[0])


def first_gone(lines):
    del lines[0]


def no_json(lines):
    lines[1] = "not JSON"


def blank(lines):
    lines[1] = ""


def number(lines):
    lines[1] = "2"


def deep(lines):
    lines[1] = "[" * 100_000


def edit_step(lines):
    lines[1] = lines[1].replace('"step": 1', '"step": 2')


def true_step(lines):
    lines[1] = lines[1].replace('"step": 1', '"step": true')


@pytest.mark.parametrize(
    ("spoil", "line"),
    [(duplicate, 2), (first_gone, 1), (no_json, 2), (blank, 2), (number, 2), (deep, 2),
     (edit_step, 2), (true_step, 2)],
)  # fmt: skip
def test_a_line_that_is_none_of_the_chain_is_refused_by_its_number(path, spoil, line):
    lines = path.read_text().splitlines()
    spoil(lines)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(StateError, match=f"line {line}:"):
        read_ledger(path)


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
    with pytest.raises(StateError, match="line 6: nothing may follow the closing line"):
        read_ledger(path)


@pytest.mark.parametrize("version", [0, 1, 3])
def test_a_ledger_of_another_form_is_refused_by_its_version(path, version):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    text = "".join(json.dumps({**line, "schema_version": version}) + "\n" for line in lines)
    path.write_text(text)
    with pytest.raises(
        InputError, match="must be a ledger of schema_version 2, got one that"
    ) as error:
        read_ledger(path)
    assert error.value.exit_code == 2


def test_a_line_with_a_number_of_too_many_digits_is_refused_by_its_number(tmp_path):
    (tmp_path / "ledger.jsonl").write_text(f'{{"step": {"1" * 5000}}}\n')
    with pytest.raises(StateError, match="line 1: the ledger is broken here"):
        read_ledger(tmp_path / "ledger.jsonl")


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
