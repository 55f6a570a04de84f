"""A user's own prompts: rows in a task's format of which only the prompt's columns are needed.

What a model writes after a prompt is post-processing only where the prompt holds no record that
the model was trained on, so the run's own files are no prompts.
"""

from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from dpft.data.memory import MEMORY, memory_rows
from dpft.data.readers import FORMATS, Row, file_rows
from dpft.data.rows import made_at, row_values
from dpft.errors import InputError
from dpft.tasks.base import SPLITS, Task, TextTask
from dpft.tasks.records import Example

PROMPTS = "prompts"
"""What a table of prompts in memory is held as."""


def load_prompts(task: TextTask, file: str) -> list[tuple[dict[str, Any], Example]]:
    """Returns each row's prompt columns, and the prompt that the task makes of them.

    Args:
        task: Says what a row means.
        file: A file in one of the formats that ``task.data_dir`` may hold, or ``MEMORY``.

    Raises:
        InputError: The file is missing, empty or of another format, or has a faulty row; the
            message names file and line and never quotes the row.
    """
    prompts = []
    for row in memory_rows(PROMPTS) if file == MEMORY else _file_rows(file):
        values = row_values(task, row, task.given_columns)
        prompts.append((values, made_at(row, task.prompt, values)))
    if not prompts:
        raise InputError(f"prompts must hold at least one row, got none in {file!r}.")
    return prompts


def _file_rows(file: str) -> Iterator[Row]:
    if not file.endswith(tuple(FORMATS)):
        raise InputError(f"prompts must end with {', '.join(FORMATS)}, got {file!r}.")
    path = Path(file).expanduser()
    if not path.is_file():
        raise InputError(f"prompts must name a file, got {file!r}, which is none.")
    return file_rows(path)


def refuse_records(task: Task, file: str) -> bool:
    """Refuses a file that a run's own records were read from, under whatever name.

    Args:
        task: The run's task, with its source.
        file: The user's file of prompts.

    Returns:
        Whether it was known where the run's own records are: ``task.data_dir`` may be relative to
        another folder, or have moved, and rows in memory are nowhere.

    Raises:
        InputError: It is the file of a split.
    """
    path = Path(file).expanduser()
    for own in split_files(task):
        if path.exists() and path.samefile(own):
            raise InputError(
                f"prompts must hold no record that the run was trained or evaluated on, got"
                f" {file!r}, which is the run's own {own.name}; epsilon does not cover what a model"
                " writes after such a record. Give prompts from elsewhere."
            )
    if MEMORY in (file, task.effective_source):
        return False
    return task.data_dir is None or Path(task.data_dir).expanduser().exists()


def split_files(task: Task) -> list[Path]:
    """Returns the files on this machine that the task's splits are read from."""
    if task.effective_source == "embedded":
        sample = resources.files("dpft") / "models" / "embedded" / "sample"
        return [Path(str(entry)) for entry in sample.iterdir() if entry.is_file()]
    if task.data_dir is None:
        return []
    place = Path(task.data_dir).expanduser()
    if task.corpus_form is not None:
        files = [place, *place.rglob("*")]
    else:
        parts = [part for split in SPLITS for part in task.parts(split)]
        files = [place, *(place / (part + ending) for part in parts for ending in FORMATS)]
    return [path for path in files if path.is_file()]
