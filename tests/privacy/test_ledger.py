import json

import pytest

from dpft.errors import InputError, StateError
from dpft.privacy.ledger import GENESIS, Ledger, check_ledger, read_ledger
from tests.privacy.test_plan import plan

MECHANISM = {"name": "poisson_sampled_gaussian", "noise_multiplier": 1.5, "sample_rate": 0.1}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        for step in (1, 2, 3):
            ledger.append(step, MECHANISM)
        ledger.close()
    return path


def test_what_was_written_is_read_back(path):
    record = read_ledger(path)
    assert (record.steps, record.lines, record.closed) == (3, 4, True)
    assert all(mechanism == MECHANISM for mechanism in record.mechanisms)


def test_a_line_is_on_disk_when_append_returns(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.append(1, MECHANISM)
        record = read_ledger(path)
        assert record.steps == 1 and not record.closed
        assert record.head == ledger.head != GENESIS


def test_lines_hold_step_mechanism_and_the_hash_of_the_line_before_and_nothing_else(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [set(line) for line in lines] == [{"step", "mechanism", "previous"}] * 3 + [
        {"closed", "previous"}
    ]


def edit(lines):
    lines[1] = lines[1].replace("1.5", "9.5")


def swap(lines):
    lines[0], lines[1] = lines[1], lines[0]


def cut(lines):
    del lines[1]


def damage(lines):
    lines[2] = lines[2][:-5]


def go_on_after_closing(lines):
    lines.append(lines[0])


@pytest.mark.parametrize(
    ("spoil", "line"), [(edit, 3), (swap, 1), (cut, 2), (damage, 3), (go_on_after_closing, 5)]
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
        Ledger(path)


def run_of(plan, path, steps, *, close=True):
    with Ledger(path) as ledger:
        for step in range(steps):
            ledger.append(step + 1, plan.mechanism_at(step))
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
    with pytest.raises(StateError, match="step 1 is not the plan's mechanism"):
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
    lines[0] = lines[0].replace('"step": 1', '"step": 2')


@pytest.mark.parametrize(
    ("spoil", "line"),
    [(duplicate, 2), (first_gone, 1), (no_json, 2), (blank, 2), (number, 2), (deep, 2),
     (edit_step, 1)],
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
    with Ledger(path) as ledger:
        ledger.append(1, MECHANISM)
    whole = path.read_text()
    path.write_text(whole + torn)
    record = read_ledger(path)
    assert (record.steps, record.counted_steps, record.lines) == (1, 2, 1)
    with Ledger.reopen(path, record) as ledger:
        assert path.read_text() == whole + torn
        ledger.append(2, MECHANISM)
    assert read_ledger(path).counted_steps == 2


def test_a_torn_line_after_the_closing_one_is_refused(path):
    path.write_text(path.read_text() + '{"mech')
    with pytest.raises(StateError, match="line 5: nothing may follow the closing line"):
        read_ledger(path)


@pytest.mark.parametrize("version", [0, 2, "1.0"])
def test_a_ledger_of_another_form_is_refused_by_its_version(path, version):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    text = "".join(json.dumps({**line, "schema_version": version}) + "\n" for line in lines)
    path.write_text(text)
    with pytest.raises(InputError, match=f"schema_version 1, got {version!r}") as error:
        read_ledger(path)
    assert error.value.exit_code == 2


def test_a_line_with_a_number_of_too_many_digits_is_refused_by_its_number(tmp_path):
    (tmp_path / "ledger.jsonl").write_text(f'{{"step": {"1" * 5000}}}\n')
    with pytest.raises(
        StateError, match="line 1: expected one JSON object, .* put the ledger back"
    ):
        read_ledger(tmp_path / "ledger.jsonl")
