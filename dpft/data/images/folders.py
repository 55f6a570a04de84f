"""Your own images: a folder for each class, or a table with a column of paths.

    DIR/train/cat/1.png  DIR/train/dog/2.jpg  DIR/test/cat/3.png     splits, a folder for each class
    DIR/cat/1.png        DIR/dog/2.jpg                               a training split alone
    DIR/train.csv        FILE.csv                                    task.image names the column

Paths in a table are relative to its folder and stay within it. What is no image by its name's end
is refused and not passed over, as in every folder that is read whole.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpft.data.local_forms import LocalForm
from dpft.data.readers import FORMATS, Row, file_rows
from dpft.errors import InputError
from dpft.tasks.base import SPLITS
from dpft.tasks.image_records import ImagePlace

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
TRAIN = "train"


def image_rows(task: Any, split: str) -> Iterator[Row]:
    """Yields the images of a split; they stay in their files.

    Raises:
        InputError: There is no such split, no image, a folder that is no class, or a path that
            leads elsewhere.
    """
    place = Path(task.data_dir or "").expanduser()
    table = _table(place, split)
    if table is not None:
        yield from _table_rows(table, task.image_column)
        return
    folder = _folders(place).get(split)
    if folder is None:
        raise InputError(
            f"task.data_dir={place} holds no {split} split; it must be {place / split}/CLASS/ with"
            f" images, or {split}.csv, .jsonl or .parquet with the column {task.image_column}."
        )
    yield from _folder_rows(folder, task.labels)


def image_splits(task: Any) -> set[str]:
    """Returns the splits that are there."""
    place = Path(task.data_dir or "").expanduser()
    tables = {split for split in SPLITS if _table(place, split) is not None}
    return tables or set(_folders(place))


FORM = LocalForm(rows=image_rows, splits=image_splits)


def _table(place: Path, split: str) -> Path | None:
    if place.is_file():
        return place if split == TRAIN else None
    found = [place / f"{split}{ending}" for ending in FORMATS]
    return next((file for file in found if file.is_file()), None)


def _folders(place: Path) -> dict[str, Path]:
    """Returns the folder of each split; a folder of classes alone is the training split."""
    if not place.is_dir():
        return {}
    named = {split: place / split for split in SPLITS if (place / split).is_dir()}
    return named or {TRAIN: place}


def _folder_rows(folder: Path, labels: tuple[str, ...]) -> Iterator[Row]:
    classes = [entry for entry in _entries(folder) if entry.is_dir()]
    if not classes:
        raise InputError(f"{folder} must hold a folder for each class, got none.")
    for each in classes:
        if each.name not in labels:
            raise InputError(
                f"{folder} holds a folder that is no class: task.labels names"
                f" {', '.join(labels)}; rename it, or add it to task.labels."
            )
    is_empty = True
    for each in classes:
        for file in _files(each):
            is_empty = False
            yield Row(str(file), {"image": ImagePlace(file=str(file)), "label": each.name})
    if is_empty:
        raise InputError(f"{folder} holds no images ({', '.join(ENDINGS)}); give at least one.")


def _files(folder: Path) -> Iterator[Path]:
    for entry in _entries(folder):
        if entry.is_dir():
            yield from _files(entry)
        elif entry.name.lower().endswith(ENDINGS):
            yield entry
        else:
            raise InputError(f"{folder} may hold nothing but images ({', '.join(ENDINGS)}).")


def _entries(folder: Path) -> list[Path]:
    """Returns what lies in a folder, in order, but for what is hidden.

    Raises:
        InputError: A link leads elsewhere.
    """
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    for entry in entries:
        if entry.is_symlink() and not entry.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{folder} holds a link that leads out of it; put the images there.")
    return entries


def _table_rows(table: Path, column: str) -> Iterator[Row]:
    folder = table.parent
    for row in file_rows(table):
        value = row.sound().get(column)
        if isinstance(value, str):
            where = folder / value
            if not value or not where.resolve().is_relative_to(folder.resolve()):
                raise InputError(f"{row.place}: the path of an image must lie within {folder}.")
            value = ImagePlace(file=str(where))
        yield Row(row.place, {**row.values, column: value})
