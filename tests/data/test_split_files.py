"""The files of a split: one, or the shards of a data set as the Hub has it."""

import json
from pathlib import Path

import pandas as pd
import pytest

from dpft.data.rows import are_records
from dpft.data.sources import has_split, has_training_split_alone, load_examples
from dpft.tasks.base import SPLITS, Task
from dpft.tasks.corpus import CorpusTask
from dpft.tasks.custom import CustomTexts
from tests.rejections import rejects

ENDINGS = (".parquet", ".jsonl", ".csv")


def custom(folder: Path) -> CustomTexts:
    return CustomTexts(name="custom", data_dir=str(folder), text_template="{text}")


def corpus(folder: Path) -> CorpusTask:
    return CorpusTask(name="corpus", data_dir=str(folder))


TASKS = pytest.mark.parametrize("make", [custom, corpus])


def write(path: Path, *texts: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"text": text} for text in texts]
    if path.suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(path)
    elif path.suffix == ".csv":
        path.write_text("text\n" + "".join(f"{text}\n" for text in texts))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def texts(task: Task, split: str = "train") -> list[str]:
    return [record.target for record in load_examples(task, split)]


@TASKS
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("subfolder", ["", "data"])
def test_shards_are_one_split_in_their_order(
    tmp_path: Path, make: type[Task], ending: str, subfolder: str
) -> None:
    for number in (2, 0, 1):
        write(tmp_path / subfolder / f"train-0000{number}-of-00003{ending}", f"text {number}")
    write(tmp_path / subfolder / f"validation-00000-of-00001-a09b74b3ef9c3b56{ending}", "held")
    task = make(tmp_path)
    assert texts(task) == ["text 0", "text 1", "text 2"]
    assert texts(task, "validation") == ["held"]
    assert [has_split(task, split) for split in SPLITS] == [True, True, False]
    assert not has_training_split_alone(task)


@TASKS
def test_a_missing_shard_is_named(tmp_path: Path, make: type[Task]) -> None:
    for number in (0, 2):
        write(tmp_path / "data" / f"train-0000{number}-of-00003.jsonl", "text")
    with rejects(str(tmp_path / "data"), "train-00001-of-00003.jsonl"):
        texts(make(tmp_path))


def test_a_first_shard_may_have_the_number_1(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path / f"train-{number}-of-2.csv", number)
    assert texts(custom(tmp_path)) == ["1", "2"]
    (tmp_path / "train-2-of-2.csv").unlink()
    with rejects(str(tmp_path), "train-0-of-2.csv"):
        texts(custom(tmp_path))


@pytest.mark.parametrize("other", ["train.csv", "train-1-of-3.csv", "train-0-of-2.jsonl"])
def test_files_of_two_sets_are_refused(tmp_path: Path, other: str) -> None:
    for name in ("train-0-of-2.csv", "train-1-of-2.csv", other):
        write(tmp_path / name, "text")
    with rejects(str(tmp_path)):
        texts(custom(tmp_path))


def test_a_folder_with_a_split_of_its_own_is_read_without_its_subfolder(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", "own")
    write(tmp_path / "data" / "train.jsonl", "other")
    write(tmp_path / "data" / "test.jsonl", "other")
    assert texts(custom(tmp_path)) == ["own"] and not has_split(custom(tmp_path), "test")


def test_an_invalid_row_is_named_by_its_shard(tmp_path: Path) -> None:
    write(tmp_path / "train-00000-of-00002.jsonl", "text", "text")
    write(tmp_path / "train-00001-of-00002.jsonl", "text", None)
    with rejects(f"{tmp_path / 'train-00001-of-00002.jsonl'}, line 2"):
        texts(custom(tmp_path))


def test_a_shard_holds_records(tmp_path: Path) -> None:
    write(tmp_path / "data" / "test-00000-of-00001.jsonl", "text")
    assert are_records(custom(tmp_path), str(tmp_path / "data" / "test-00000-of-00001.jsonl"))
