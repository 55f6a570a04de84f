"""A faulty record is named by file and place, in one sentence that quotes nothing of it."""

import gzip
from pathlib import Path

import pytest

from tests.stories import planted
from tests.stories.tiny import MARKER, Workspace

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return planted.make_planted(tmp_path_factory.mktemp("faulty"))


FAULTY = {
    "no JSON": (
        "train.jsonl",
        f'{{"question": "{MARKER}", "answer": "a"}}\n{{"{MARKER}\n',
        "line 2",
    ),
    "no text": ("train.jsonl", f'{{"question": ["{MARKER}"], "answer": "a"}}\n', "line 1"),
    "no column": (
        "train.jsonl",
        f'{{"question": "{MARKER}"}}\n',
        "line 1: the row has no column answer",
    ),
    "no header": ("train.csv", f"{MARKER},x\n{MARKER},a\n", "line 2: the row has no column"),
    "open quote": ("train.csv", f'question,answer\na,"{MARKER}\n', "line 2: not valid CSV"),
    "cells": ("train.csv", f"question,answer\na,b\n{MARKER},b,{MARKER}\n", "line 3: the row has"),
    "latin-1": ("train.csv", b"question,answer\na,Qzxmarker \xff\n", "line 2: not UTF-8"),
    "no object": ("train.json", f'[{{"question": "a", "answer": "a"}}, "{MARKER}"]', "record 2"),
    "cut gzip": ("train.jsonl.gz", gzip.compress(MARKER.encode() * 99)[:-9], "gzip"),
    "no parquet": ("train.parquet", MARKER.encode() * 9, "Parquet"),
}
FAST = ("no JSON", "no header", "latin-1")


@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST)) for name in FAULTY]
)
def test_a_faulty_record_is_named_by_file_and_place_and_never_quoted(
    workspace: Workspace, tmp_path: Path, fault: str
) -> None:
    name, content, place = FAULTY[fault]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    given = [word for word in planted.TRAINING if "privacy.unit" not in word]
    given = [word for word in given if "records_per_unit" not in word]
    sentence = workspace.refusal("train", *given, f"task.data_dir={tmp_path}")
    assert name in sentence and place in sentence
    assert MARKER not in sentence


def test_a_wrong_class_and_a_missing_owner_are_named_by_line_alone(
    workspace: Workspace, tmp_path: Path
) -> None:
    rows = f"text,mood,customer\nday,good,1\n{MARKER},{MARKER},1\n"
    (tmp_path / "train.csv").write_text(rows)
    given = [
        word for word in planted.TRAINING
        if not word.startswith(("task.prompt", "task.target", "task.metrics", "task.data_dir"))
    ]  # fmt: skip
    given += [f"task.data_dir={tmp_path}", 'task.text="{text}"']
    classes = ("task.label=mood", "task.labels=[good,bad]")
    sentence = workspace.refusal("train", *given, *classes)
    assert "line 3: the column mood" in sentence and MARKER not in sentence
    (tmp_path / "train.csv").write_text(f"text,customer\n{MARKER},\n")
    sentence = workspace.refusal("train", *given)
    assert "line 2: the column customer" in sentence and MARKER not in sentence
