"""A corpus on disk: a file of texts, or a folder of such files, read in the order of their names.

Other local data are one table a split. A corpus comes as it was collected: hundreds of files in
folders of their own, plain text among them. Each file is read as a stream, one after the other, in
the order of their names. Nothing in the folder is passed over in silence: a file that would not be
read is refused, since what was trained on, and how much of it, must be what the user believes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from dpft.errors import InputError
from dpft.tasks.base import SPLITS, CorpusForm, Task

ENDINGS = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz", ".parquet", ".csv")
"""Endings of a file's name, all of formats that are read as a stream."""
KNOWN = f"{', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}"


def corpus_formats(form: CorpusForm) -> Mapping[str, Reader]:
    """Returns the readers of a corpus's files by the endings of their names."""
    read_text = _document_rows if form.by_document else _line_rows
    read = partial(read_text, column=form.column)
    own: dict[str, Reader] = {".txt": read, ".txt.gz": packed(read), ".csv": _csv_rows}
    return {ending: own.get(ending) or FORMATS[ending] for ending in ENDINGS}


def corpus_files(task: Task) -> dict[str, list[Path]]:
    """Returns the files of each split that a corpus on disk has, in the order they are read.

    A file alone is the training split, and so is a folder, with all that is in it and in its
    folders, unless it holds files or folders that have the name of a split: train.txt,
    train.1.jsonl.gz, train/. Then nothing else may lie beside these.

    Raises:
        InputError: There is no such place, or it holds no files, or a file that cannot be one of a
            corpus.
    """
    place = Path(task.data_dir or "").expanduser()
    if place.is_file():
        if not place.name.endswith(ENDINGS):
            raise InputError(f"task.data_dir={place} must end with {KNOWN}; rename it.")
        return {TRAIN: [place]}
    if not place.is_dir():
        fault = "is neither" if place.exists() else "does not exist"
        raise InputError(
            f"task.data_dir must be a file that ends with {KNOWN}, or a folder of such files, got"
            f" {task.data_dir!r}, which {fault}."
        )
    splits = _by_split(place, [part for split in SPLITS for part in task.parts(split)])
    files = {split: list(_files(entries)) for split, entries in splits.items()}
    for split, found in files.items():
        if not found:
            raise InputError(
                f"the {split} split of task.data_dir={place} must hold files that end with {KNOWN},"
                " got none; put some in."
            )
    return files


def known_splits(task: Task) -> set[str]:
    """Returns the splits that a corpus on disk has; none of one that cannot be read."""
    try:
        return set(corpus_files(task))
    except InputError:  # whoever reads it is told
        return set()


def corpus_split(task: Task, split: str) -> list[Path]:
    """Returns the files of one split.

    Raises:
        InputError: As ``corpus_files``, or the corpus has no such split.
    """
    files = corpus_files(task)
    if split not in files:
        raise InputError(
            f"task.data_dir={task.data_dir} holds no {split} split, only {' and '.join(files)};"
            f" hold records out with eval.held_out=0.1, or give a folder with {TRAIN} and {split},"
            f" each a folder of files or a file such as {split}.txt."
        )
    return files[split]


def _rows(task: Task, split: str) -> Iterator[Row]:
    assert task.corpus_form is not None
    readers = corpus_formats(task.corpus_form)
    return chain.from_iterable(file_rows(file, readers) for file in corpus_split(task, split))


FORM = LocalForm(rows=_rows, splits=known_splits)


def _by_split(place: Path, parts: Sequence[str]) -> dict[str, list[Path]]:
    """Returns the entries of a folder by split; all are of one split where no name says more."""
    entries = _entries(place)
    found: dict[str, list[Path]] = {}
    for entry in entries:
        name = entry.name if entry.is_dir() else entry.name.partition(".")[0]
        if name in parts:
            found.setdefault(name, []).append(entry)
    if not found:
        return {TRAIN: entries}
    named = {entry for some in found.values() for entry in some}
    others = [entry.name for entry in entries if entry not in named]
    if others:
        split = next(iter(found))
        raise InputError(
            f"task.data_dir={place} holds {found[split][0].name}, which is the {split} split, and"
            f" {others[0]}, which is of no split; move it, or rename the one or the other."
        )
    return {part: found[part] for part in parts if part in found}


def _files(entries: Iterable[Path]) -> Iterator[Path]:
    """Yields the files among entries and in their folders."""
    for entry in entries:
        is_hidden, is_folder = entry.name.startswith("."), entry.is_dir()
        if is_folder and not is_hidden:
            yield from _files(_entries(entry))
        elif entry.is_file() and not is_hidden and entry.name.endswith(ENDINGS):
            yield entry
        else:
            what = "which is hidden" if is_hidden else "which is none of them"
            raise InputError(
                f"task.data_dir may hold nothing but files that end with {KNOWN}, and folders of"
                f" these, got {entry}, {what}; move it elsewhere."
            )


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir(), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}.") from error


def _line_rows(stream: Iterable[bytes], file: str, *, column: str) -> Iterator[Row]:
    for number, line in enumerate(decoded_lines(_text(stream, file), file), start=1):
        yield Row(line_place(file, number), {column: _without_end(line)}, has_columns=False)


def _document_rows(stream: Iterable[bytes], file: str, *, column: str) -> Iterator[Row]:
    text = "\n".join(map(_without_end, decoded_lines(_text(stream, file), file)))
    yield Row(file, {column: text}, has_columns=False)


def _csv_rows(stream: Iterable[bytes], file: str) -> Iterator[Row]:
    return csv_rows(_text(stream, file), file)


def _text(stream: Iterable[bytes], file: str) -> Iterator[bytes]:
    """Yields the lines of a stream; refuses the character that no text file has.

    A .jsonl file needs no such look: where JSON may hold the byte, it is not JSON.
    """
    for number, line in enumerate(stream, start=1):
        if b"\0" in line:
            raise InputError(
                f"{line_place(file, number)}: not text, since it holds a NUL character; take the"
                " file out, or write it anew as UTF-8 text."
            )
        yield line


def _without_end(line: str) -> str:
    r"""Returns a line without the \n or \r\n that ends it; no other character ends a line."""
    return line.removesuffix("\n").removesuffix("\r") if line.endswith("\n") else line
