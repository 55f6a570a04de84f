"""Readers of image data sets on disk: folders, tables, CelebA, CIFAR and digits.

    DIR/train/cat/1.png  DIR/train/dog/2.jpg  DIR/test/cat/3.png     splits, one folder per class
    DIR/cat/1.png        DIR/dog/2.jpg                               only a training split
    DIR/train.csv        FILE.csv                                    task.image names the column

Paths in a table are relative to the folder of the table and must stay inside it. A file that has no
image extension is rejected and not skipped, as in every folder whose files dpft reads.

CelebA (Liu et al. 2015) has a list of attributes and a list of partitions. CIFAR (Krizhevsky 2009)
is read in its binary version, which consists of records of fixed length. A record has one label
byte and 3072 image bytes. CIFAR-100 has two label bytes, for the coarse label and for the fine
label that dpft uses. The Python version of CIFAR is a pickle, which can run arbitrary code. dpft
rejects it by its file name (docs/dev/design.md, rule 11). Data sets of the Hugging Face Hub are
Parquet files that contain images. The digits come with scikit-learn: 1797 gray images of 8 x 8
pixels (UCI, Alpaydin 1998).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpft.data.raw_rows import FORMATS, TRAIN, LocalForm, Row, file_rows, line_place
from dpft.data.split_files import files_by_split, in_order
from dpft.errors import InputError
from dpft.tasks.base import SPLITS, ImagePlace


def parquet_files(folder: Path, split: str) -> list[Path]:
    """Return the Parquet files of a split; ``in_order`` checks that no shard is missing."""
    return files_by_split(folder, SPLITS, (".parquet",)).get(split, [])


def parquet_rows(file: Path, names: Mapping[str, str]) -> Iterator[Row]:
    """Yield the rows of a file, with its columns renamed to the names of the task.

    Args:
        file: Parquet file.
        names: Column name in the file to column name of the task.

    Raises:
        InputError: The file cannot be read.
    """
    for row in file_rows(file):
        values = {names.get(name, name): value for name, value in row.values.items()}
        yield Row(row.place, values)


ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


def image_rows(task: Any, split: str) -> Iterator[Row]:
    """Yield one row per image of a split; the images stay in their files.

    Raises:
        InputError: The split or its images are missing, a folder is not a class, or a path leads
            outside of the data.
    """
    place = Path(task.data_dir or "").expanduser()
    tables = _tables(place, split)
    if tables:
        for table in in_order(tables):
            yield from _table_rows(table, task.image_column)
        return
    folder = _folders(place).get(split)
    if folder is None:
        raise InputError(
            f"task.data_dir={place} has no {split} split. It must contain {place / split}/CLASS/"
            f" with images, or {split}.csv, .jsonl or .parquet with the column"
            f" {task.image_column}.",
            key="task.data_dir",
            value=task.data_dir,
        )
    yield from _folder_rows(folder, task.labels)


def image_splits(task: Any) -> set[str]:
    """Return the splits that exist in ``task.data_dir``."""
    place = Path(task.data_dir or "").expanduser()
    tables = {split for split in SPLITS if _tables(place, split)}
    return tables or set(_folders(place))


IMAGES_FORM = LocalForm(rows=image_rows, splits=image_splits)


def _tables(place: Path, split: str) -> list[Path]:
    if place.is_file():
        return [place] if split == TRAIN else []
    return files_by_split(place, SPLITS, FORMATS).get(split, [])


def _folders(place: Path) -> dict[str, Path]:
    """Return the folder of each split.

    A folder that contains only classes is the training split.
    """
    if not place.is_dir():
        return {}
    named = {split: place / split for split in SPLITS if (place / split).is_dir()}
    return named or {TRAIN: place}


def _folder_rows(folder: Path, labels: tuple[str, ...]) -> Iterator[Row]:
    classes = [entry for entry in _entries(folder) if entry.is_dir()]
    if not classes:
        raise InputError(
            f"{folder} must contain a folder for each class, got none.", key=str(folder)
        )
    for class_folder in classes:
        if class_folder.name not in labels:
            raise InputError(
                f"{folder} contains a folder that is not one of task.labels ({', '.join(labels)})."
                " Rename the folder, or add it to task.labels.",
                key="task.labels",
            )
    is_empty = True
    for class_folder in classes:
        for file in _files(class_folder):
            is_empty = False
            yield Row(str(file), {"image": ImagePlace(file=str(file)), "label": class_folder.name})
    if is_empty:
        raise InputError(
            f"{folder} contains no images ({', '.join(ENDINGS)}). Add at least one.",
            key=str(folder),
        )


def _files(folder: Path) -> Iterator[Path]:
    for entry in _entries(folder):
        if entry.is_dir():
            yield from _files(entry)
        elif entry.name.lower().endswith(ENDINGS):
            yield entry
        else:
            raise InputError(
                f"{folder} may contain only images ({', '.join(ENDINGS)}).", key=str(folder)
            )


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a folder that are not hidden, in order.

    Raises:
        InputError: An entry is a link to a place outside of the folder.
    """
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    for entry in entries:
        if entry.is_symlink() and not entry.resolve().is_relative_to(folder.resolve()):
            raise InputError(
                f"{folder} contains a link to a place outside of it. Copy the images into it.",
                key=str(folder),
            )
    return entries


def _table_rows(table: Path, column: str) -> Iterator[Row]:
    folder = table.parent
    for row in file_rows(table):
        value = row.sound().get(column)
        if isinstance(value, str):
            where = folder / value
            if not value or not where.resolve().is_relative_to(folder.resolve()):
                raise InputError(
                    f"{row.place}: the path of an image must be inside of {folder}.", key=row.place
                )
            value = ImagePlace(file=str(where))
        yield Row(row.place, {**row.values, column: value})


IMAGES = "img_align_celeba"
ATTRIBUTES = "list_attr_celeba.txt"
PARTITION = "list_eval_partition.txt"
PARTS = {"train": "0", "validation": "1", "test": "2"}


def celeba_rows(task: Any, split: str) -> Iterator[Row]:
    """Yield one row per image of a split, with all attributes; the images stay in their files.

    Raises:
        InputError: A file is missing, or one of its lines has another format.
    """
    folder = Path(task.data_dir or "").expanduser()
    tables = parquet_files(folder, split)
    if tables:
        for file in in_order(tables):
            yield from parquet_rows(file, task.column_names)
        return
    lines = _lines(folder / ATTRIBUTES)
    names = lines[1].split() if len(lines) > 1 else []
    numbered = enumerate(_lines(folder / PARTITION), start=1)
    part_of = dict(_fields(folder / PARTITION, line) for line in numbered if line[1].strip())
    for number, line in enumerate(lines[2:], start=3):
        if not line.strip():
            continue
        place = line_place(str(folder / ATTRIBUTES), number)
        image, *values = line.split()
        if len(values) != len(names):
            raise InputError(
                f"{place}: the line has {len(values)} attributes, but the file names {len(names)}.",
                key=place,
            )
        if part_of.get(image) != PARTS[split]:
            continue
        where = ImagePlace(file=str(folder / IMAGES / image))
        yield Row(place, {"image": where, **dict(zip(names, values, strict=True))})


def celeba_splits(task: Any) -> set[str]:
    """Return the splits that exist in ``task.data_dir``."""
    folder = Path(task.data_dir or "").expanduser()
    if (folder / ATTRIBUTES).is_file() and (folder / PARTITION).is_file():
        return set(PARTS)
    return {split for split in PARTS if parquet_files(folder, split)}


CELEBA_FORM = LocalForm(rows=celeba_rows, splits=celeba_splits)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        raise InputError(
            f"{file} cannot be read. The folder task.data_dir must contain {IMAGES}/, {ATTRIBUTES}"
            f" and {PARTITION}, or Parquet files such as train.parquet.",
            key="task.data_dir",
        ) from None


def _fields(file: Path, line: tuple[int, str]) -> tuple[str, str]:
    fields = line[1].split()
    if len(fields) != 2:
        place = line_place(str(file), line[0])
        raise InputError(f"{place}: the line must name an image and its partition.", key=place)
    return fields[0], fields[1]


SHAPE = (3, 32, 32)
IMAGE_BYTES = 3 * 32 * 32
FOLDERS = ("cifar-10-batches-bin", "cifar-100-binary")
BINARIES = {
    "train": (*(f"data_batch_{number}.bin" for number in range(1, 6)), "train.bin"),
    "test": ("test_batch.bin", "test.bin"),
}
PICKLES = ("data_batch_1", "test_batch", "train", "test", "meta", "batches.meta")


def cifar_rows(task: Any, split: str) -> Iterator[Row]:
    """Yield one row per image of a split; the images stay in their file.

    Raises:
        InputError: The folder does not contain the split, contains the Python version of CIFAR, or
            contains an incomplete file.
    """
    folder = _folder(task)
    binaries = _binaries(folder, split)
    if binaries:
        for file in binaries:
            yield from _binary_rows(file, task.label_bytes, len(task.labels))
        return
    tables = parquet_files(folder, split)
    if not tables:
        raise InputError(_missing_files(folder, split), key="task.data_dir", value=task.data_dir)
    for file in in_order(tables):
        yield from parquet_rows(file, task.column_names)


def cifar_splits(task: Any) -> set[str]:
    """Return the splits of the folder, or the empty set if the folder cannot be read."""
    try:
        folder = _folder(task)
    except InputError:
        return set()
    return {split for split in BINARIES if _binaries(folder, split) or parquet_files(folder, split)}


CIFAR_FORM = LocalForm(rows=cifar_rows, splits=cifar_splits)


def _folder(task: Any) -> Path:
    folder = Path(task.data_dir or "").expanduser()
    if not folder.is_dir():
        raise InputError(
            f"task.data_dir must be a folder with CIFAR's files, got {task.data_dir!r}, which is"
            " not a folder. Unpack an archive first.",
            key="task.data_dir",
            value=task.data_dir,
        )
    inside = [folder / name for name in FOLDERS if (folder / name).is_dir()]
    return inside[0] if inside else folder


def _binaries(folder: Path, split: str) -> list[Path]:
    return [folder / name for name in BINARIES.get(split, ()) if (folder / name).is_file()]


def _missing_files(folder: Path, split: str) -> str:
    """Return the error message for a folder without the split."""
    pickles = sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.name in PICKLES
        or entry.name.endswith((".pkl", ".pickle", ".tar.gz", "-py", "-python"))
    )
    if pickles:
        return (
            f"task.data_dir={folder} contains {pickles[0]} of the version for Python, which dpft"
            " does not read because a pickle can run code. Use the binary version"
            " (cifar-10-binary.tar.gz, unpacked), or Parquet files."
        )
    names = " and ".join(BINARIES.get(split, ())[:1]) or "test_batch.bin"
    return (
        f"task.data_dir={folder} has no {split} split of CIFAR. It must contain {names} and so on"
        f" of the binary version, or {split}.parquet."
    )


def _binary_rows(file: Path, label_bytes: int, classes: int) -> Iterator[Row]:
    length = label_bytes + IMAGE_BYTES
    if file.stat().st_size % length:
        raise InputError(
            f"{file}: the size is not a multiple of {length} bytes, the size of a record"
            f" (label bytes: {label_bytes}). Unpack the archive again, or choose the task of this"
            " data set.",
            key=str(file),
        )
    records = np.memmap(file, np.uint8, "r").reshape(-1, length)
    for number, label in enumerate(records[:, label_bytes - 1].tolist()):
        place = f"{file}, record {number + 1}"
        if label >= classes:
            raise InputError(f"{place}: the label is not one of the {classes} classes.", key=place)
        image = ImagePlace(file=str(file), offset=number * length + label_bytes, shape=SHAPE)
        yield Row(place, {"image": image, "label": label})


SIZE, DARKEST = 8, 16
EVERY = 5


def digit_rows(task: Any, split: str) -> Iterator[Row]:
    """Yield the digits of the train or test split; ``task.half`` selects the training digits.

    Raises:
        InputError: scikit-learn is not installed, or the split does not exist.
    """
    if split not in ("train", "test"):
        raise InputError(
            f"task=digits has only a train and a test split, got {split}.", key="task", value=split
        )
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise InputError(
            "task=digits needs scikit-learn, which contains the images.",
            key="task",
            value="digits",
            hint="pip install scikit-learn",
        ) from error
    images, labels = load_digits(return_X_y=True)
    pixels = (images * 255 / DARKEST).round().astype(np.uint8)
    for number in places(len(labels), split, task.half):
        place = ImagePlace(content=pixels[number].tobytes(), shape=(1, SIZE, SIZE))
        values = {"image": place, "label": int(labels[number])}
        yield Row(f"digits of scikit-learn, number {number}", values)


def places(count: int, split: str, half: str) -> list[int]:
    """Return the indices of the digits of a split.

    Every fifth digit is a test digit. ``half`` selects all training digits or every second one.

    >>> places(11, "test", "all"), places(11, "train", "public"), places(11, "train", "private")
    ([0, 5, 10], [1, 3, 6, 8], [2, 4, 7, 9])
    """
    test = range(0, count, EVERY)
    if split == "test":
        return list(test)
    train = [number for number in range(count) if number not in test]
    return {"all": train, "public": train[::2], "private": train[1::2]}[half]


DIGITS_FORM = LocalForm(rows=digit_rows, splits=lambda _: {"train", "test"})
