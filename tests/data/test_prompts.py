"""Prompts of a user's file, and that a run's own files are none."""

import gzip
import json
import os

import pytest

from dpft.data.prompts import load_prompts, refuse_records, split_files
from dpft.errors import InputError
from dpft.tasks.e2e import E2ETask

TASK = E2ETask(name="e2e")
RECORDS = ["name[A], eatType[pub]", "name[B]", "name[A], eatType[pub]"]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_prompt_needs_no_answer_and_rows_keep_their_order(tmp_path):
    rows = [{"meaning_representation": record, "other": 5} for record in RECORDS]
    found = load_prompts(TASK, write(tmp_path / "p.jsonl", rows))
    assert [row for row, _ in found] == [{"meaning_representation": r} for r in RECORDS]
    assert [example.prompt for _, example in found[:2]] == ["name : A | Type : pub\n", "name : B\n"]
    assert {example.target for _, example in found} == {""}


def test_every_format_of_local_files_is_read(tmp_path):
    (tmp_path / "p.csv").write_text('meaning_representation\n"name[A], near[B]"\n')
    with gzip.open(tmp_path / "p.jsonl.gz", "wt") as file:
        file.write(json.dumps({"meaning_representation": "name[A], near[B]"}))
    for name in ("p.csv", "p.jsonl.gz"):
        ((row, _),) = load_prompts(TASK, str(tmp_path / name))
        assert row == {"meaning_representation": "name[A], near[B]"}


def test_other_names_of_columns_are_known(tmp_path):
    task = E2ETask(name="e2e", column_aliases={"mr": "meaning_representation"})
    file = write(tmp_path / "p.jsonl", [{"mr": "name[A]"}])
    assert load_prompts(task, file)[0][0] == {"meaning_representation": "name[A]"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.txt", b"x", r"prompts must end with \.csv, .*got '.*p.txt'"),
        ("p.jsonl", None, "prompts must name a file"),
        ("p.jsonl", b"\n", "at least one row"),
        ("p.jsonl", b'{"ref": "Qzx"}', "line 1: lacks the column .* needs meaning_rep[a-z_]*\\.$"),
        ("p.jsonl", b'{"meaning_representation": 5}', "line 1: .* must hold text"),
        ("p.jsonl", b'\n{"meaning_representation": "Qzx["}', "line 2: meaning_representation must"),
        ("p.csv", b"meaning_representation\nname[A]\n\xff\n", "line 3: not UTF-8"),
    ],
)
def test_a_faulty_file_is_refused_by_line_and_never_quoted(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as refusal:
        load_prompts(TASK, str(tmp_path / name))
    assert "Qzx" not in str(refusal.value)


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("train.jsonl", "test.csv", "mine.jsonl"):
        (folder / name).write_text("")
    return folder


@pytest.mark.parametrize("split", ["train.jsonl", "test.csv"])
def test_a_file_of_a_split_is_no_prompt_under_any_name(data, split):
    task = E2ETask(name="e2e", data_dir=str(data))
    (data / "link").symlink_to(data / split)
    os.link(data / split, data / "copy")
    for name in (split, "link", "copy", f"../data/{split}"):
        with pytest.raises(InputError, match=f"the run's own {split}"):
            refuse_records(task, str(data / name))


def test_another_file_of_the_same_folder_may_be_a_prompt(data):
    assert refuse_records(E2ETask(name="e2e", data_dir=str(data)), str(data / "mine.jsonl"))


def test_a_task_of_one_file_refuses_that_file(data):
    task = E2ETask(name="e2e", data_dir=str(data / "mine.jsonl"))
    with pytest.raises(InputError, match="the run's own mine.jsonl"):
        refuse_records(task, str(data / "mine.jsonl"))


def test_parts_of_a_split_are_its_files(data):
    task = E2ETask(name="e2e", data_dir=str(data), split_parts={"validation": ("mine",)})
    assert {path.name for path in split_files(task)} == {"train.jsonl", "test.csv", "mine.jsonl"}


def test_the_embedded_sample_is_no_prompt():
    task = E2ETask(name="e2e", source="embedded")
    names = {path.name.partition(".")[0]: path for path in split_files(task)}
    assert set(names) == {"train", "validation", "test"}
    with pytest.raises(InputError, match="the run's own train.jsonl.gz"):
        refuse_records(task, str(names["train"]))


def test_a_folder_that_has_gone_is_told_from_one_without_the_file(tmp_path, data):
    own = str(data / "mine.jsonl")
    assert not refuse_records(E2ETask(name="e2e", data_dir=str(tmp_path / "gone")), own)
    assert refuse_records(E2ETask(name="e2e"), own)
