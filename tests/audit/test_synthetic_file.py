"""Which files are taken for synthetic records, and of which something may be released."""

import json
from pathlib import Path
from typing import Any

import pytest

from dpft.audit.synthetic_file import SyntheticFile, read_synthetic
from dpft.errors import InputError, StateError
from dpft.files import write_json
from dpft.tasks.custom_texts import CustomTexts
from dpft.tasks.e2e import E2ETask
from tests.reports.plain import privacy_of, stated
from tests.reports.test_privacy_record import record as private
from tests.stories.tiny import write_rows

PRIVACY = private()
STATEMENT = {**stated(PRIVACY), "notes": ["it costs"]}
ROWS = [("name[Cafe]", "A cafe."), ("name[Inn]", "An inn.")]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "new.jsonl"
    write_rows(path, ROWS)
    path.chmod(0o644)
    return path


def read(file: Path, privacy: dict[str, Any] | None = PRIVACY) -> SyntheticFile:
    return read_synthetic(
        Path("run"), E2ETask(name="e2e", data_dir="data"), file, privacy and privacy_of(privacy)
    )


def state(file: Path, **changed: Any) -> None:
    write_json(file.with_name("new.privacy.json"), {**STATEMENT, **changed})


def test_what_a_model_wrote_is_read(file: Path) -> None:
    state(file)
    found = read(file)
    assert found.texts(10) == ["A cafe.", "An inn."]
    assert found.texts(1) == ["A cafe."]
    assert (found.notes, found.why_private) == (("it costs",), None)


def test_a_learned_prompt_is_written_too_unless_it_was_given(tmp_path: Path) -> None:
    task = CustomTexts(
        name="custom", prompt_template="{q}: ", target_template="{a}", learn_prompt=True
    )
    file = tmp_path / "new.jsonl"
    file.write_text('{"q": "Why", "a": "so"}\n')
    for prompts, text in (("none", "Why: so"), ("the user's", "so")):
        state(file, prompts=prompts)
        assert read_synthetic(Path("run"), task, file, privacy_of(PRIVACY)).texts(1) == [text]


@pytest.mark.parametrize("column", ["mood", "Mood"])
def test_a_row_whose_label_is_none_is_left_out_and_counted(tmp_path: Path, column: str) -> None:
    task = CustomTexts(
        name="custom",
        prompt_template="{mood}: ",
        target_template="{text}",
        learn_prompt=True,
        label_column="mood",
        labels=("bad", "good"),
        column_aliases={"Mood": "mood"} if column == "Mood" else {},
    )
    file = tmp_path / "new.jsonl"
    moods = ("bad", "pgative", "good", "")
    lines = (json.dumps({column: mood, "text": f"day of {mood}"}) for mood in moods)
    file.write_text("\n".join(lines))
    found = read_synthetic(Path("run"), task, file, None)
    assert found.texts(9) == ["day of bad", "day of good"]
    assert found.no_rows == 2
    file.write_text(json.dumps({column: "pgative", "text": "x"}))
    with pytest.raises(
        InputError, match="at least one row whose label is of task.labels, got none"
    ):
        read_synthetic(Path("run"), task, file, None)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.jsonl", None, "synthetic must name a file that `dpft generate` wrote, got"),
        ("new.txt", "text", r"synthetic must end with \.csv, .*got"),
        ("new.jsonl", "", "synthetic must hold at least one row, got none in"),
        ("new.jsonl", "text\n", "line 1: not a JSON object"),
        ("new.jsonl", '{"text": "a"}\n', "line 1: lacks the column meaning_representation"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=said) as refused:
        read(tmp_path / name)
    assert len(refused.value.faults) == 1


def test_the_runs_own_records_are_refused(file: Path) -> None:
    (file.parent / "data").mkdir()
    write_rows(file.parent / "data/train.jsonl", ROWS)
    (file.parent / "link.jsonl").symlink_to(file.parent / "data/train.jsonl")
    with pytest.raises(InputError, match=r"which is the run's own train\.jsonl\."):
        read(file.parent / "link.jsonl")


def test_records_of_another_run_are_refused(file: Path) -> None:
    state(file, ledger={"lines": 3, "head": "b" * 64}, run="2026/1")
    with pytest.raises(InputError, match="got records of 2026/1, by the statement beside them"):
        read(file)


def test_without_a_statement_nothing_may_be_released(file: Path) -> None:
    assert "no new.privacy.json lies beside" in str(read(file).why_private)


def test_of_a_run_without_privacy_nothing_may_be_released(file: Path) -> None:
    state(file)
    reproducible = {**PRIVACY, "private": False}
    for privacy in (reproducible, None):
        assert "the run promises no privacy" in str(read(file, privacy).why_private)


def test_prompts_are_no_more_open_than_their_file(file: Path) -> None:
    state(file, prompts="the user's")
    assert read(file).why_private is None
    file.chmod(0o600)
    assert "prompts in a file that its owner alone may read" in str(read(file).why_private)


def test_a_damaged_statement_is_said(file: Path) -> None:
    for content in ("{", json.dumps({"schema_version": 1, "notes": "x", "prompts": "none"})):
        file.with_name("new.privacy.json").write_text(content)
        with pytest.raises(StateError, match="is damaged"):
            read(file)
