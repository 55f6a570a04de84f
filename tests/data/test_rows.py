"""What a row holds; no refusal quotes it."""

import json
import os
import sys
from dataclasses import replace
from typing import Any

import pytest

from dpft.data.raw_rows import Row
from dpft.data.rows import (
    are_records,
    examples_of,
    load_prompts,
    split_files,
    unit_of,
    with_unique_groups,
)
from dpft.errors import InputError
from dpft.tasks.e2e import E2ETask
from tests.evaluation.letters import LetterTask, example
from tests.rejections import rejects

SECRET = "Qzxsecret"


class KeyedTask(LetterTask):
    """A task whose column a configuration key names."""

    key: str
    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def column_key(self, column: str) -> str:
        return self.key


TASK = LetterTask(name="letters", max_length=12, column_aliases={"letters": "target"})


def row(**values: object) -> Row:
    return Row("x.csv, line 7", values)


def test_a_missing_column_is_named_by_all_its_names_and_the_row_by_its_place() -> None:
    with rejects("x.csv, line 7") as faults:
        examples_of(TASK, row(group=SECRET, **{SECRET: "b"}))
    assert "target (or letters)" in str(faults[0]) and SECRET not in str(faults[0])


@pytest.mark.parametrize("value", [None, 3, [SECRET], f"{SECRET}\ud800"])
def test_a_value_that_is_no_text_is_refused_and_not_quoted(value: object) -> None:
    with rejects("x.csv, line 7") as faults:
        examples_of(TASK, row(group="a", letters=value))
    assert SECRET not in str(faults[0])


class Refusing(LetterTask):
    """Finds fault with every row."""

    def examples(self, row: Any) -> Any:
        raise InputError("two letters are needed.", key="letters", hint="letters=ab")


def test_a_tasks_own_refusal_says_which_row_it_is_of() -> None:
    task = Refusing(name="letters")
    with rejects("x.csv, line 7") as faults:
        examples_of(task, row(group="a", target="b"))
    assert faults[0].message.endswith("two letters are needed.")
    assert faults[0].hint == "letters=ab"


def test_groups_that_an_earlier_row_has_are_numbered() -> None:
    taken = {"a", "a (2)"}
    same = example("a", "x")
    apart = with_unique_groups([same, replace(same, target="y"), example("b", "z")], taken)
    assert [each.group for each in apart] == ["a (3)", "a (3)", "b"]
    assert taken == {"a", "a (2)", "a (3)", "b"}


@pytest.mark.parametrize("value", ["", "  ", None, True, 1.5, [SECRET], f"{SECRET}\ud800"])
def test_a_record_of_nobody_is_refused_and_not_quoted(value: object) -> None:
    with rejects("x.csv, line 7") as faults:
        unit_of(row(of=value), "of")
    assert SECRET not in str(faults[0])


def test_a_unit_that_the_file_lacks_counts_its_columns_and_names_none() -> None:
    with rejects("x.csv, line 7") as faults:
        unit_of(row(**{SECRET: "x", "other": "y"}), "customer")
    assert "2 columns" in str(faults[0]) and SECRET not in str(faults[0])


def test_a_terminal_is_shown_the_columns_and_the_nearest_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its owner reads it; a pipe or a log gets their number alone."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    known = row(id="1", text="a", label="b", **{"x" * 50: "c"})
    task = KeyedTask(name="letters", max_length=12, key="task.text", column="txt")
    with rejects() as faults:
        examples_of(task, known)
    assert f"id, text, label, {'x' * 39}…: did you mean {{text}}?" in str(faults[0])
    with rejects() as faults:
        unit_of(known, "lbel")
    assert "did you mean label?" in str(faults[0])
    with rejects() as faults:
        unit_of(known, "customer")
    assert "did you mean" not in str(faults[0])


E2E = E2ETask(name="e2e")
RECORDS = ["name[A], eatType[pub]", "name[B]", "name[A], eatType[pub]"]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_prompt_needs_no_answer_and_rows_keep_their_order(tmp_path):
    rows = [{"meaning_representation": record, "other": 5} for record in RECORDS]
    found = load_prompts(E2E, write(tmp_path / "p.jsonl", rows))
    assert [row for row, _ in found] == [{"meaning_representation": r} for r in RECORDS]
    assert [example.prompt for _, example in found[:2]] == ["name : A | Type : pub\n", "name : B\n"]
    assert {example.target for _, example in found} == {""}


@pytest.mark.parametrize(
    ("name", "content", "key"),
    [
        ("p.txt", b"x", "prompts"),
        ("p.jsonl", None, "prompts"),
        ("p.jsonl", b"\n", "prompts"),
        ("p.jsonl", b'{"ref": "Qzx"}', "{}, line 1"),
        ("p.jsonl", b'{"meaning_representation": 5}', "{}, line 1"),
        ("p.jsonl", b'\n{"meaning_representation": "Qzx["}', "{}, line 2"),
        ("p.csv", b"meaning_representation\nname[A]\n\xff\n", "{}, line 3"),
    ],
)
def test_a_faulty_file_is_refused_by_line_and_never_quoted(tmp_path, name, content, key):
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with rejects(key.format(file)) as faults:
        load_prompts(E2E, str(file))
    assert "Qzx" not in str(faults[0])


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("train.jsonl", "test.csv", "mine.jsonl"):
        (folder / name).write_text("")
    return folder


@pytest.mark.parametrize("split", ["train.jsonl", "test.csv"])
def test_a_file_of_a_split_holds_records_under_any_name(data, split):
    task = E2ETask(name="e2e", data_dir=str(data))
    (data / "link").symlink_to(data / split)
    os.link(data / split, data / "copy")
    for name in (split, "link", "copy", f"../data/{split}"):
        assert are_records(task, str(data / name))


def test_another_file_of_the_same_folder_holds_no_records(data):
    assert not are_records(E2ETask(name="e2e", data_dir=str(data)), str(data / "mine.jsonl"))
    assert not are_records(E2ETask(name="e2e"), str(data / "mine.jsonl"))


def test_a_task_of_one_file_has_its_records_there(data):
    task = E2ETask(name="e2e", data_dir=str(data / "mine.jsonl"))
    assert are_records(task, str(data / "mine.jsonl"))


def test_parts_of_a_split_are_its_files(data):
    task = E2ETask(name="e2e", data_dir=str(data), split_parts={"validation": ("mine",)})
    assert {path.name for path in split_files(task)} == {"train.jsonl", "test.csv", "mine.jsonl"}


def test_the_bundled_sample_holds_records():
    task = E2ETask(name="e2e", source="embedded")
    names = {path.name.partition(".")[0]: path for path in split_files(task)}
    assert set(names) == {"train", "validation", "test"}
    assert are_records(task, str(names["train"]))
