import gzip
import json
import traceback
from itertools import islice
from pathlib import Path

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from dpft.data import sources
from dpft.data.corpora import ENDINGS, corpus_files
from dpft.data.rows import split_files
from dpft.data.sources import (
    has_split,
    has_training_split_alone,
    load_examples,
    read_examples,
)
from dpft.data.training_records import PackedRecords
from dpft.errors import InputError
from dpft.tasks.corpus import CorpusTask
from tests.data.conftest import load_with_units

SECRET = "secret"


def corpus(place: Path | None, **settings: object) -> CorpusTask:
    return CorpusTask(name="corpus", data_dir=place and str(place), **settings)


def texts(place: Path, split: str = "train", **settings: object) -> list[str]:
    return [example.target for example in load_examples(corpus(place, **settings), split)]


def refusal(place: Path, split: str = "train", **settings: object) -> str:
    with pytest.raises(InputError) as caught:
        load_examples(corpus(place, **settings), split)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write(path: Path, content: str | bytes = "a text\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def lines_of(*values: object) -> str:
    return "".join(json.dumps({"text": value, "who": "ann"}) + "\n" for value in values)


def write_parquet(path: Path) -> None:
    parquet.write_table(pyarrow.table({"text": ["one", " ", "two"]}), path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "one\n \n\ntwo\n"),
        ("a.txt", "one\r\n\r\ntwo"),
        ("a.txt", "\ufeffone\ntwo"),
        ("a.txt.gz", gzip.compress(b"one\n\ntwo\n", mtime=0)),
        ("a.jsonl", lines_of("one", " ", "two")),
        ("a.jsonl.gz", gzip.compress(lines_of("one", "", "two").encode(), mtime=0)),
        ("a.csv", "who,text\nann,one\nann, \nann,two\n"),
        ("a.parquet", None),
    ],
)
def test_each_format_gives_its_texts_and_blank_ones_are_none(tmp_path, name, content):
    path = tmp_path / name
    write_parquet(path) if content is None else write(path, content)
    assert texts(path) == texts(tmp_path) == ["one", "two"]


def test_a_line_is_kept_as_it_is_and_ended_by_a_line_feed_alone(tmp_path):
    content = " a\u2028b\x0bc\x85d\x1ee \nf\rg\r\r\n\ufeffh"
    assert texts(write(tmp_path / "a.txt", content)) == [
        " a\u2028b\x0bc\x85d\x1ee ",
        "f\rg\r",
        "\ufeffh",
    ]


def test_a_document_is_a_text_file_as_a_whole_with_one_kind_of_line_end(tmp_path):
    write(tmp_path / "a.txt", "\ufeffone\r\n\r\ntwo\r\n")
    write(tmp_path / "b.txt", " \n\n")
    write(tmp_path / "c.jsonl", lines_of("three\n", "four"))
    write(tmp_path / "d.txt.gz", gzip.compress(b"five\nsix", mtime=0))
    read = texts(tmp_path, record_kind="document")
    assert read == ["one\n\ntwo", "three\n", "four", "five\nsix"]


def test_a_folder_is_read_whole_in_the_order_of_the_names(tmp_path):
    for name in ("b.txt", "a/2.txt", "a/10.txt.gz", "c.csv", "a/deep/er/x.jsonl", "B.txt"):
        content = {".csv": f"text\n{name}\n", ".jsonl": lines_of(name)}.get(Path(name).suffix, name)
        packed = gzip.compress(name.encode()) if name.endswith(".gz") else content
        write(tmp_path / name, packed)
    order = ["B.txt", "a/10.txt.gz", "a/2.txt", "a/deep/er/x.jsonl", "b.txt", "c.csv"]
    assert texts(tmp_path) == order
    assert [
        path.relative_to(tmp_path).as_posix() for path in corpus_files(corpus(tmp_path))["train"]
    ] == order  # noqa: E501
    assert {path.relative_to(tmp_path).as_posix() for path in split_files(corpus(tmp_path))} == {
        *order
    }  # noqa: E501


def test_files_and_folders_with_a_splits_name_are_that_split(tmp_path):
    write(tmp_path / "train" / "news" / "1.txt", "one\n")
    write(tmp_path / "train.2.jsonl", lines_of("two"))
    write(tmp_path / "validation.txt.gz", gzip.compress(b"three", mtime=0))
    assert texts(tmp_path) == ["one", "two"]
    assert texts(tmp_path, "validation") == ["three"]
    task = corpus(tmp_path)
    assert [has_split(task, split) for split in sources.SPLITS] == [True, True, False]
    assert not has_training_split_alone(task)
    sentence = refusal(tmp_path, "test")
    assert "holds no test split, only train and validation" in sentence


@pytest.mark.parametrize("name", ["a.txt", "folder/a.txt", "train.txt"])
def test_without_other_splits_all_is_the_training_split(tmp_path, name):
    write(tmp_path / name)
    for place in (tmp_path, tmp_path / name):
        task = corpus(place)
        assert has_training_split_alone(task)
        assert [has_split(task, split) for split in sources.SPLITS] == [True, False, False]
        assert "eval.held_out=0.1" in refusal(place, "validation")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a.txt", "b.pdf", "c.zip"], ["b.pdf", "none of them", ".txt.gz, .jsonl"]),
        (["a/b/c.md", "d.txt"], ["a/b/c.md", "none of them"]),
        (["a.json"], ["a.json", "none of them"]),
        (["a.txt", "z/.hidden.txt"], [".hidden.txt", "hidden"]),
        (["a.txt", ".git/config"], [".git", "hidden"]),
        (["train.txt", "notes.txt"], ["train.txt, which is the train split", "notes.txt"]),
        (["train.txt", "test/x.zip"], ["x.zip", "none of them"]),
    ],
)
def test_what_would_not_be_read_is_refused_and_not_passed_over(tmp_path, names, words):
    for name in names:
        write(tmp_path / name)
    sentence = refusal(tmp_path)
    assert [word for word in ["task.data_dir", *words] if word not in sentence] == [], sentence


def test_a_place_without_files_is_refused(tmp_path):
    assert "train split" in refusal(tmp_path) and "got none" in refusal(tmp_path)
    (tmp_path / "a").mkdir()
    assert "got none" in refusal(tmp_path)
    assert "which does not exist" in refusal(tmp_path / "nowhere")
    assert f"must end with {', '.join(ENDINGS[:-1])}" in refusal(write(tmp_path / "a.doc"))
    (tmp_path / "b").symlink_to(tmp_path / "gone.txt")
    assert "none of them" in refusal(tmp_path)
    assert split_files(corpus(tmp_path / "nowhere")) == []


def test_a_folder_that_links_to_itself_is_refused(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path)
    write(tmp_path / "b.txt")
    assert "none of them" in refusal(tmp_path)


def test_texts_that_are_all_blank_are_no_corpus(tmp_path):
    write(tmp_path / "a.txt", "\n \n")
    assert "holds no rows" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"fine\n\nsecret \xff\xfe\n", "a.txt, line 3: not UTF-8"),
        ("a.txt", b"\xff\xfes\0e\0c\0", "a.txt, line 1: not"),
        ("a.txt", b"fine\nsecret\0secret\n", "a.txt, line 2: not text, since it holds a NUL"),
        ("a.txt.gz", gzip.compress(b"fine\nsecret\0\n", mtime=0), "a.txt.gz, line 2: not text"),
        (
            "a.txt.gz",
            gzip.compress(b"secret\n" * 999, mtime=0)[:-9],
            "a.txt.gz: not a complete gzip",
        ),
        ("a.txt.gz", b"secret", "a.txt.gz: not a complete gzip"),
        ("a.csv", b"text\nsecret\0\n", "a.csv, line 2: not text"),
        ("a.csv", b"note\nsecret\n", "line 2: lacks the column text, which task.text names"),
        ("a.jsonl", b'{"text": "secret\0"}\n', "a.jsonl, line 1: not a JSON object"),
        ("a.jsonl", b'{"text": "secret\xff"}\n', "a.jsonl, line 1: not UTF-8"),
        ("a.jsonl", b'{"text": "secret\\ud800"}\n', "a.jsonl, line 1: the column text must hold"),
        ("a.jsonl", b'{"text": ["secret"]}\n', "a.jsonl, line 1: the column text must hold"),
        ("a.parquet", b"secret", "a.parquet: not a complete Parquet file"),
    ],
)
@pytest.mark.parametrize("record", ["line", "document"])
def test_a_file_that_is_not_text_is_named_by_line_and_never_quoted(
    tmp_path, name, content, words, record
):
    write(tmp_path / name, content)
    assert words in refusal(tmp_path, record_kind=record)


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "a.txt")
    monkeypatch.setattr(Path, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "no")))
    assert f"{path} cannot be read: no" in refusal(tmp_path)


def test_units_are_a_column_of_the_files_that_have_columns(tmp_path):
    write(tmp_path / "a.jsonl", lines_of("one", "", "two"))
    write(tmp_path / "b.csv", "text,who\nthree, bob \n")
    examples, units = load_with_units(corpus(tmp_path), "train", "who")
    assert [example.target for example in examples] == ["one", "two", "three"]
    assert units == ["ann", "ann", "bob"]
    write(tmp_path / "a" / "c.txt", f"{SECRET}\n")
    for column in ("who", "text"):
        with pytest.raises(InputError) as caught:
            load_with_units(corpus(tmp_path), "train", column)
        sentence = str(caught.value)
        assert "c.txt, line 1: a text file has no columns" in sentence
        assert f"{column}, which privacy.unit names" in sentence


def test_files_are_read_as_far_as_records_are_asked_for(tmp_path):
    write(tmp_path / "a.txt", b"one\n" * 100_000 + b"\xff")
    write(tmp_path / "b.csv", b"\xff")
    read = read_examples(corpus(tmp_path), "train", None)
    assert [each.record.target for each in islice(read, 2)] == ["one", "one"]


def test_lines_are_packed_in_about_their_own_bytes(tmp_path):
    write(tmp_path / "a.txt", "".join(f"line {n:042d}.\n" for n in range(20_000)))
    read = read_examples(corpus(tmp_path), "train", None)
    records = PackedRecords(each.record for each in read)
    assert len(records) == 20_000
    held = sum(len(block) for block in records._blocks)
    assert held / len(records) < 48 + 64


def test_the_hub_is_read_as_a_stream_and_kept_nowhere(tmp_path, monkeypatch):
    path, asked = write(tmp_path / "c4.jsonl", lines_of("one", "two")), {}

    def load(name: str, config: str, **settings: object) -> datasets.IterableDataset:
        asked.update(settings, name=name, config=config)
        real = datasets.IterableDataset.from_generator
        return real(lambda: map(json.loads, path.read_text().splitlines()))

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(sources, "hub_is_reachable", lambda: True)
    task = corpus(None, source="hub", hub_name="allenai/c4", hub_config="en")
    assert [example.target for example in load_examples(task, "validation")] == ["one", "two"]
    assert asked == {
        "name": "allenai/c4", "config": "en", "revision": None, "split": "validation",
        "streaming": True,
    }  # fmt: skip


def test_a_stream_that_breaks_off_is_one_sentence(monkeypatch):
    def rows() -> object:
        yield {"text": "one"}
        raise ConnectionError("gone")

    stream = datasets.IterableDataset.from_generator(rows)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: stream)
    monkeypatch.setattr(sources, "hub_is_reachable", lambda: True)
    task = corpus(None, source="hub", hub_name="allenai/c4")
    with pytest.raises(InputError, match=r"allenai/c4 .* could not be read \(ConnectionError\)"):
        load_examples(task, "train")
