"""CelebA from a folder (Liu et al. 2015): its images, its list of attributes, its partition."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpft.data.images.tables import parquet_files, parquet_rows
from dpft.data.local_forms import LocalForm
from dpft.data.readers import Row, line_place
from dpft.errors import InputError
from dpft.tasks.image_records import ImagePlace

IMAGES = "img_align_celeba"
ATTRIBUTES = "list_attr_celeba.txt"
PARTITION = "list_eval_partition.txt"
PARTS = {"train": "0", "validation": "1", "test": "2"}


def celeba_rows(task: Any, split: str) -> Iterator[Row]:
    """Yields the images of a split with all their attributes; they stay in their files.

    Raises:
        InputError: A file is missing, or a line of it is of another form.
    """
    folder = Path(task.data_dir or "").expanduser()
    tables = parquet_files(folder, split)
    if tables:
        for file in tables:
            yield from parquet_rows(file, task.column_names)
        return
    lines = _lines(folder / ATTRIBUTES)
    names = lines[1].split() if len(lines) > 1 else []
    part_of = dict(_fields(folder / PARTITION, line) for line in _numbered(folder / PARTITION))
    for number, line in enumerate(lines[2:], start=3):
        if not line.strip():
            continue
        place = line_place(str(folder / ATTRIBUTES), number)
        image, *values = line.split()
        if len(values) != len(names):
            raise InputError(f"{place}: {len(values)} attributes where {len(names)} are named.")
        if part_of.get(image) != PARTS[split]:
            continue
        where = ImagePlace(file=str(folder / IMAGES / image))
        yield Row(place, {"image": where, **dict(zip(names, values, strict=True))})


def celeba_splits(task: Any) -> set[str]:
    """Returns the splits that are there."""
    folder = Path(task.data_dir or "").expanduser()
    if (folder / ATTRIBUTES).is_file() and (folder / PARTITION).is_file():
        return set(PARTS)
    return {split for split in PARTS if parquet_files(folder, split)}


FORM = LocalForm(rows=celeba_rows, splits=celeba_splits)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        raise InputError(
            f"{file} cannot be read; task.data_dir must hold {IMAGES}/, {ATTRIBUTES} and"
            f" {PARTITION}, or train.parquet and others."
        ) from None


def _numbered(file: Path) -> list[tuple[int, str]]:
    return [(number, line) for number, line in enumerate(_lines(file), start=1) if line.strip()]


def _fields(file: Path, line: tuple[int, str]) -> tuple[str, str]:
    fields = line[1].split()
    if len(fields) != 2:
        raise InputError(f"{line_place(str(file), line[0])}: not an image's name and its part.")
    return fields[0], fields[1]
