"""Reader of text corpora: the files of a folder, as rows.

Other local data have one table per split. A corpus may consist of hundreds of files in nested
folders, some of them plain text. dpft reads the files as streams, one after the other, in the order
of their names. A file that dpft cannot read is rejected and not skipped. Otherwise the number of
training records would differ from the number that the user expects.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from dpft.data.raw_rows import (
    FORMATS,
    TRAIN,
    LocalForm,
    Reader,
    Row,
    csv_rows,
    decoded_lines,
    file_rows,
    line_place,
    packed,
)
from dpft.data.split_files import SHARD, in_order, split_of
from dpft.errors import InputError
from dpft.tasks.base import Task

ENDINGS = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz", ".parquet", ".csv")
"""File name endings of a corpus. All of these formats are read as a stream."""
KNOWN = f"{', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}"


def corpus_files(task: Task) -> dict[str, list[Path]]:
    """Return the files of each split of a corpus on disk, in reading order.

    A single file is the training split. A folder, with all its subfolders, is also the training
    split unless it contains files or folders that are named after a split: train.txt,
    train.1.jsonl.gz, train-00000-of-00002.parquet, train/. In that case, the folder must contain
    nothing else. The splits may be in a subfolder ``data`` if it is the only entry of the folder.

    Raises:
        InputError: The path does not exist, a split contains no files, or a file cannot belong to a
            corpus.
    """
    place = Path(task.data_dir or "").expanduser()
    if place.is_file():
        if not place.name.endswith(ENDINGS):
            raise InputError(
                f"task.data_dir={place} must end with {KNOWN}. Rename the file.",
                key="task.data_dir",
                value=task.data_dir,
            )
        return {TRAIN: [place]}
    if not place.is_dir():
        fault = "is neither of them" if place.exists() else "does not exist"
        raise InputError(
            f"task.data_dir must be a file that ends with {KNOWN}, or a folder of such files, got"
            f" {task.data_dir!r}, which {fault}.",
            key="task.data_dir",
            value=task.data_dir,
        )
    splits = _by_split(place, task.all_parts)
    files = {split: list(_files(entries)) for split, entries in splits.items()}
    for split, paths in files.items():
        if not paths:
            raise InputError(
                f"the {split} split of task.data_dir={place} must contain files that end with"
                f" {KNOWN}, got none.",
                key="task.data_dir",
                value=task.data_dir,
            )
    return files


def known_splits(task: Task) -> set[str]:
    """Return the splits of a corpus on disk, or the empty set if the corpus cannot be read."""
    try:
        return set(corpus_files(task))
    except InputError:  # reported when the corpus is read
        return set()


def corpus_split(task: Task, split: str) -> list[Path]:
    """Return the files of one split.

    Raises:
        InputError: The corpus does not have the split, or ``corpus_files`` rejects it.
    """
    files = corpus_files(task)
    if split not in files:
        raise InputError(
            f"task.data_dir={task.data_dir} has no {split} split, only {' and '.join(files)}. Hold"
            f" out records for evaluation, or use a folder with {TRAIN} and {split}, each a folder"
            f" of files or a file such as {split}.txt.",
            key="task.data_dir",
            value=task.data_dir,
            hint="eval.held_out=0.1",
        )
    return files[split]


def _rows(task: Task, split: str) -> Iterator[Row]:
    assert task.corpus_form is not None
    form = task.corpus_form
    read = partial(_document_rows if form.by_document else _line_rows, column=form.column)
    corpus_readers: dict[str, Reader] = {".txt": read, ".txt.gz": packed(read), ".csv": _csv_rows}
    readers = {ending: corpus_readers.get(ending) or FORMATS[ending] for ending in ENDINGS}
    return chain.from_iterable(file_rows(file, readers) for file in corpus_split(task, split))


FORM = LocalForm(rows=_rows, splits=known_splits)


def _by_split(place: Path, parts: Sequence[str]) -> dict[str, list[Path]]:
    """Return the entries of a folder by split; without split names, all are training data."""
    entries = _entries(place)
    entries_by_split: dict[str, list[Path]] = {}
    for entry in entries:
        name = entry.name if entry.is_dir() else split_of(entry.name)
        if name in parts:
            entries_by_split.setdefault(name, []).append(entry)
    if not entries_by_split:
        is_hub_folder = [entry.name for entry in entries] == ["data"] and entries[0].is_dir()
        return _by_split(entries[0], parts) if is_hub_folder else {TRAIN: entries}
    for split_entries in entries_by_split.values():
        if shards := [entry for entry in split_entries if SHARD.search(entry.name)]:
            in_order(shards)
    named = {entry for split_entries in entries_by_split.values() for entry in split_entries}
    others = [entry.name for entry in entries if entry not in named]
    if others:
        split = next(iter(entries_by_split))
        raise InputError(
            f"task.data_dir={place} contains {entries_by_split[split][0].name}, which is the"
            f" {split} split, and {others[0]}, which belongs to no split. Move {others[0]}, or"
            " rename one of them.",
            key="task.data_dir",
            value=str(place),
        )
    return {part: entries_by_split[part] for part in parts if part in entries_by_split}


def _files(entries: Iterable[Path]) -> Iterator[Path]:
    """Yield the files among the entries and, recursively, in their folders."""
    for entry in entries:
        is_hidden, is_folder = entry.name.startswith("."), entry.is_dir()
        if is_folder and not is_hidden:
            yield from _files(_entries(entry))
        elif entry.is_file() and not is_hidden and entry.name.endswith(ENDINGS):
            yield entry
        else:
            reason = "is hidden" if is_hidden else "is neither of them"
            raise InputError(
                f"task.data_dir may contain only files that end with {KNOWN}, and folders of such"
                f" files, got {entry}, which {reason}. Move it to another folder.",
                key="task.data_dir",
                value=str(entry),
            )


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir(), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}.", key=str(folder)) from error


def _line_rows(stream: Iterable[bytes], file: str, *, column: str) -> Iterator[Row]:
    for number, line in enumerate(decoded_lines(_text(stream, file), file), start=1):
        yield Row(line_place(file, number), {column: _without_end(line)}, has_columns=False)


def _document_rows(stream: Iterable[bytes], file: str, *, column: str) -> Iterator[Row]:
    text = "\n".join(map(_without_end, decoded_lines(_text(stream, file), file)))
    yield Row(file, {column: text}, has_columns=False)


def _csv_rows(stream: Iterable[bytes], file: str) -> Iterator[Row]:
    return csv_rows(_text(stream, file), file)


def _text(stream: Iterable[bytes], file: str) -> Iterator[bytes]:
    """Yield the lines of a stream and reject NUL characters, which no text file contains.

    A .jsonl file needs no such check, because JSON with a NUL byte is invalid.
    """
    for number, line in enumerate(stream, start=1):
        if b"\0" in line:
            place = line_place(file, number)
            raise InputError(
                f"{place}: not text, because the line contains a NUL character. Remove the file, or"
                " convert it to UTF-8 text.",
                key=place,
            )
        yield line


def _without_end(line: str) -> str:
    r"""Return a line without the \n or \r\n at its end; no other character ends a line."""
    return line.removesuffix("\n").removesuffix("\r") if line.endswith("\n") else line
