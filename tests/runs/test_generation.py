"""Synthetic records: from what prompts, into which files, and never without what they cost."""

import errno
import json
import stat
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpft.config.schema import GenerateConfig
from dpft.errors import InputError, StateError
from dpft.generation.decoding import DecodeConfig
from dpft.runs import generation
from dpft.runs.generation import new_files, privacy_of, prompts_of, text_task, write, write_texts
from dpft.tasks.custom_texts import CustomTexts
from dpft.tasks.e2e import E2ETask
from dpft.tasks.glue import GlueTask
from dpft.tasks.records import Example
from tests.runs.spending.run_folders import make_run
from tests.stories.tiny import write_rows

E2E = E2ETask(name="e2e", data_dir="data")
WHOLE = CustomTexts(name="custom", data_dir="data", text_template="{text}")
ROWS = [("name[Cafe 1]", "A cafe."), ("name[Cafe 2]", "A cafe.")]
NUCLEUS = DecodeConfig(strategy="nucleus")


def asked(**given: Any) -> GenerateConfig:
    return GenerateConfig(**{"task": E2E, "decode": NUCLEUS, "run": "outputs/a/b", **given})


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with ``data``, the records of a run, and ``prompts.jsonl``."""
    (tmp_path / "data").mkdir()
    for split in ("train", "validation", "test"):
        write_rows(tmp_path / "data" / f"{split}.jsonl", ROWS)
    write_rows(tmp_path / "prompts.jsonl", ROWS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_a_runs_texts_cost_must_be_known(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    assert privacy_of(folder)["epsilon"] == 1.0
    (folder / "privacy.json").write_text("{")
    with pytest.raises(StateError, match="is damaged"):
        privacy_of(folder)
    (folder / "privacy.json").unlink()
    with pytest.raises(InputError, match=r"run must have a privacy\.json"):
        privacy_of(folder)


def test_a_task_of_labels_is_refused() -> None:
    task = GlueTask(name="rte", labels=("yes", "no"), objective="cls")
    with pytest.raises(InputError, match="answers are texts, got task=rte, whose answers are lab"):
        text_task(task)


def test_prompts_are_the_rows_of_the_file_in_its_order(data: Path) -> None:
    config = asked(prompts="prompts.jsonl")
    rows = [row for row, _ in prompts_of(config, E2E, E2E)]
    assert [list(row.values()) for row in rows] == [[record] for record, _ in ROWS]


def test_where_whole_records_were_trained_on_the_model_goes_on_from_nothing() -> None:
    prompts = prompts_of(asked(task=WHOLE, num=3), WHOLE, WHOLE)
    assert [(row, example.prompt) for row, example in prompts] == [({}, "")] * 3


def test_the_other_way_to_ask_is_refused_by_task(data: Path) -> None:
    with pytest.raises(InputError, match=r"task=e2e.*meaning_representation; give prompts=FILE"):
        prompts_of(asked(num=3), E2E, E2E)
    with pytest.raises(InputError, match="task=custom, whose whole record .* give num=N"):
        prompts_of(asked(prompts="prompts.jsonl"), WHOLE, WHOLE)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_runs_own_records_are_no_prompts(data: Path, split: str) -> None:
    (data / "link.jsonl").symlink_to(data / "data" / f"{split}.jsonl")
    for file in (f"data/{split}.jsonl", "link.jsonl"):
        with pytest.raises(InputError, match=rf"trained or evaluated on.* own {split}\.jsonl"):
            prompts_of(asked(prompts=file), E2E, E2E)


def test_where_the_runs_data_has_gone_that_is_said(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = asked(prompts="prompts.jsonl")
    prompts_of(config, E2E, E2E)
    assert caplog.text == ""
    prompts_of(config, E2E, replace(E2E, data_dir="gone"))
    assert "the run's own records are not here" in caplog.text


def test_without_to_each_call_has_files_of_its_own_in_the_run(tmp_path: Path) -> None:
    for number in (1, 2):
        target = new_files(tmp_path, None)
        assert target.records == tmp_path / "generated" / f"{number}.jsonl"
        assert target.statement.name == f"{number}.privacy.json"
        write(asked(num=1), target, {"private": False}, [{}])
    (tmp_path / "generated" / "1.jsonl").unlink()
    assert new_files(tmp_path, None).records.name == "3.jsonl", "whose statement is there"


@pytest.mark.parametrize(
    ("to", "part"),
    [
        ("new.csv", r"to must end in \.jsonl, got 'new\.csv'"),
        ("prompts.jsonl", r"to must be a new file.*prompts\.jsonl exists; choose"),
        ("stated.jsonl", r"to must be a new file.*stated\.privacy\.json exists"),
        ("prompts.jsonl/x.jsonl", r"to must be a new file.*prompts\.jsonl is a file"),
    ],
)
def test_nothing_is_written_over(data: Path, to: str, part: str) -> None:
    (data / "stated.privacy.json").touch()
    with pytest.raises(InputError, match=part):
        new_files(data / "run", to)


@pytest.mark.parametrize(("mode", "expected"), [(0o644, 0o644), (0o600, 0o600)])
def test_records_are_no_more_open_than_the_prompts_in_them(
    data: Path, mode: int, expected: int
) -> None:
    (data / "prompts.jsonl").chmod(mode)
    target = new_files(data, "new/x.jsonl")
    write(asked(prompts="prompts.jsonl"), target, {"private": False}, [{"text": "Qzxmine"}])
    assert stat.S_IMODE(target.records.stat().st_mode) == expected
    assert stat.S_IMODE(target.statement.stat().st_mode) == 0o644
    assert "Qzxmine" not in target.statement.read_text()


def test_a_statement_names_the_run_but_not_the_machine(tmp_path: Path) -> None:
    target = new_files(tmp_path, None)
    write(asked(num=1, run="/home/me/outputs/DATE/TIME"), target, {"private": False}, [{}])
    assert json.loads(target.statement.read_text())["run"] == "DATE/TIME"


def test_records_that_cannot_be_written_leave_no_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = new_files(tmp_path, str(tmp_path / "full.jsonl"))

    def full_disk(*_: object, **__: object) -> None:
        assert target.statement.exists(), "no records lie there without it"
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(generation, "write_jsonl", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write(asked(num=1), target, {"private": False}, [{}])
    assert list(tmp_path.iterdir()) == []


class Model:
    """Stands in for a run's model: writes two texts at a time."""

    def outputs(self, *_: object, **settings: int) -> "Model":
        assert settings == {"batch_size": 2, "max_new_tokens": 100}
        return self

    def texts(self, groups: list[Any], decode: DecodeConfig, count: Any) -> list[str]:
        for at in range(0, len(groups), 2):
            count(len(groups[at : at + 2]))
        return [group.examples[0].prompt.upper() for group in groups]


def test_a_bar_counts_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[object, ...]] = []
    bar = nullcontext(lambda *moved: shown.append(moved))
    monkeypatch.setattr(generation, "batch_progress", lambda: bar)
    prompts = [Example(prompt=each, target="", group=each) for each in "aba"]
    config = asked(num=3, batch_size=2)
    assert write_texts(config, Model(), prompts) == ["A", "B", "A"]
    assert shown == [("records", 2, 3), ("records", 3, 3)]
