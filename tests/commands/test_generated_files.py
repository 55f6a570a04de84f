"""Which files synthetic records go to, and that they never lie there without what they cost."""

import errno
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from dpft.commands import generate as generation
from dpft.commands.generate import GeneratedFiles, GeneratedTexts, new_files, write_generated
from dpft.config.schema import GenerateConfig
from dpft.generation.decoding import DecodeConfig
from dpft.privacy.plan import StepsPlan
from dpft.tasks.custom import CustomChats, CustomTexts
from dpft.tasks.dart import DartTask
from dpft.tasks.e2e import E2ETask
from dpft.tasks.personachat import PersonaChatTask
from tests.rejections import rejects
from tests.reports.plain import privacy_of
from tests.reports.test_privacy_record import without_privacy

WHOLE = CustomTexts(name="custom", data_dir="data", text_template="{text}")
WRITTEN = GeneratedTexts(
    texts=("Qzxmine", "Qzxmine too"), records=({"text": "Qzxmine"}, None), unread=(1, 1)
)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(
    target: GeneratedFiles, task: Any = WHOLE, written: GeneratedTexts = WRITTEN, **given: Any
) -> dict:
    """Write two texts, and return what the statement says."""
    asked = {"num": None if "prompts" in given else 2, "run": "outputs/a/b", **given}
    config = GenerateConfig(task=task, decode=DecodeConfig(strategy="nucleus"), **asked)
    prompts = [({}, WHOLE.prompt({}))] * 2
    privacy = privacy_of(without_privacy(StepsPlan(num_examples=9, expected_batch_size=3, steps=9)))
    source = "the user's" if "prompts" in given else "none"
    write_generated(
        config,
        target,
        privacy=privacy,
        task=task,
        texts=written,
        prompts=prompts,
        source=source,
    )
    return json.loads(target.statement.read_text())


def test_without_to_each_call_has_files_of_its_own_in_the_run(tmp_path: Path) -> None:
    for number in (1, 2):
        target = new_files(tmp_path, None, WHOLE)
        assert target.records == tmp_path / "generated" / f"{number}.jsonl"
        assert target.statement.name == f"{number}.privacy.json"
        put(target)
    (tmp_path / "generated" / "1.jsonl").unlink()
    assert new_files(tmp_path, None, WHOLE).records.name == "3.jsonl", "whose statement is there"


@pytest.mark.parametrize(
    ("to", "part"),
    [
        ("new.txt", ".jsonl, .csv, .parquet"),
        ("prompts.jsonl", "prompts.jsonl exists"),
        ("apart.csv", "apart.unparsed.jsonl exists"),
        ("stated.jsonl", "stated.privacy.json exists"),
        ("prompts.jsonl/x.jsonl", "prompts.jsonl is a file"),
    ],
)
def test_nothing_is_written_over(data: Path, to: str, part: str) -> None:
    (data / "prompts.jsonl").touch()
    (data / "stated.privacy.json").touch()
    (data / "apart.unparsed.jsonl").touch()
    with rejects("to", to) as faults:
        new_files(data / "run", to, WHOLE)
    assert part in faults[0].message


@pytest.mark.parametrize(("mode", "expected"), [(0o644, 0o644), (0o600, 0o600)])
def test_records_are_no_more_open_than_the_prompts_in_them(
    data: Path, mode: int, expected: int
) -> None:
    (data / "prompts.jsonl").touch(mode)
    target = new_files(data, "new/x.csv", WHOLE)
    put(target, prompts="prompts.jsonl")
    assert "Qzxmine" in target.records.read_text() and "Qzxmine" in target.unparsed.read_text()
    assert stat.S_IMODE(target.records.stat().st_mode) == expected
    assert stat.S_IMODE(target.unparsed.stat().st_mode) == expected
    assert stat.S_IMODE(target.statement.stat().st_mode) == 0o644
    assert "Qzxmine" not in target.statement.read_text()


def test_a_statement_names_the_run_but_not_the_machine(tmp_path: Path) -> None:
    target = new_files(tmp_path, None, WHOLE)
    put(target, run="/home/me/outputs/DATE/TIME")
    assert json.loads(target.statement.read_text())["run"] == "DATE/TIME"


def test_records_that_cannot_be_written_leave_no_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = new_files(tmp_path, str(tmp_path / "full.jsonl"), WHOLE)

    def full_disk(path: Path, *_: object, **__: object) -> None:
        assert target.statement.exists(), "no records lie there without it"
        if path == target.unparsed:
            path.touch()
            return
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(generation, "write_rows", full_disk)
    with pytest.raises(OSError, match="No space left"):
        put(target)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "task",
    [
        CustomChats(name="custom", messages_column="talk"),
        DartTask(name="dart"),
        PersonaChatTask(name="personachat"),
    ],
)
def test_rows_of_lists_are_refused_a_table_of_texts_and_take_the_others(
    data: Path, task: Any
) -> None:
    with rejects("to", "a.csv"):
        new_files(data, "a.csv", task)
    assert new_files(data, "a.parquet", task).records.name == "a.parquet"
    assert new_files(data, "a.csv", E2ETask(name="e2e")).records.name == "a.csv"


def test_what_is_no_row_is_counted_and_lies_apart(data: Path) -> None:
    target = new_files(data, "a.csv", WHOLE)
    statement = put(target, retries=1)
    assert target.records.read_text().split() == ["text", "Qzxmine"]
    assert json.loads(target.unparsed.read_text()) == {"text": "Qzxmine too"}
    assert (statement["records"], statement["unparsed"], statement["retries"]) == (2, 1, 1)


def test_where_all_are_rows_nothing_lies_apart(data: Path) -> None:
    target = new_files(data, "a.csv", WHOLE)
    both = GeneratedTexts(texts=("a", "b"), records=({"text": "a"}, {"text": "b"}), unread=(0,))
    assert put(target, written=both)["unparsed"] == 0
    assert not target.unparsed.exists()


def test_of_a_users_prompts_and_without_a_template_there_is_no_count(data: Path) -> None:
    (data / "prompts.jsonl").touch()
    target = new_files(data, "a.csv", WHOLE)
    assert "unparsed" not in put(target, prompts="prompts.jsonl")
    assert "unparsed" not in put(new_files(data, "b.csv", WHOLE), task=E2ETask(name="e2e"))
