"""CIFAR-10 and CIFAR-100 from a folder (Krizhevsky 2009): the binary version, or Parquet.

The binary version has records of one length: one byte of a label (CIFAR-100: two, a coarse one and
the one that is used) and 3072 of an image. The version for Python is a pickle, which can run any
code of whoever wrote it: nothing is unpickled, and it is refused by name (docs/design.md, rule 11).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpft.data.images.tables import parquet_files, parquet_rows
from dpft.data.local_forms import LocalForm
from dpft.data.readers import Row
from dpft.errors import InputError
from dpft.tasks.image_records import ImagePlace

SHAPE = (3, 32, 32)
IMAGE_BYTES = 3 * 32 * 32
FOLDERS = ("cifar-10-batches-bin", "cifar-100-binary")
BINARIES = {
    "train": (*(f"data_batch_{number}.bin" for number in range(1, 6)), "train.bin"),
    "test": ("test_batch.bin", "test.bin"),
}
PICKLES = ("data_batch_1", "test_batch", "train", "test", "meta", "batches.meta")


def cifar_rows(task: Any, split: str) -> Iterator[Row]:
    """Yields the images of a split; they stay in their file.

    Raises:
        InputError: The folder has no such split, or it is of the version for Python, or a file is
            not whole.
    """
    folder = _folder(task)
    binaries = _binaries(folder, split)
    if binaries:
        for file in binaries:
            yield from _binary_rows(file, task.label_bytes, len(task.labels))
        return
    tables = parquet_files(folder, split)
    if not tables:
        raise InputError(_what_is_missing(folder, split))
    for file in tables:
        yield from parquet_rows(file, task.column_names)


def cifar_splits(task: Any) -> set[str]:
    """Returns the splits that are there; none in a folder that cannot be read."""
    try:
        folder = _folder(task)
    except InputError:
        return set()
    return {split for split in BINARIES if _binaries(folder, split) or parquet_files(folder, split)}


FORM = LocalForm(rows=cifar_rows, splits=cifar_splits)


def _folder(task: Any) -> Path:
    folder = Path(task.data_dir or "").expanduser()
    if not folder.is_dir():
        raise InputError(
            f"task.data_dir must be a folder with CIFAR's files, got {task.data_dir!r}, which is"
            " none; archives are to be unpacked."
        )
    inside = [folder / name for name in FOLDERS if (folder / name).is_dir()]
    return inside[0] if inside else folder


def _binaries(folder: Path, split: str) -> list[Path]:
    return [folder / name for name in BINARIES.get(split, ()) if (folder / name).is_file()]


def _what_is_missing(folder: Path, split: str) -> str:
    pickles = sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.name in PICKLES
        or entry.name.endswith((".pkl", ".pickle", ".tar.gz", "-py", "-python"))
    )
    if pickles:
        return (
            f"task.data_dir={folder} holds {pickles[0]}, of the version for Python, which is"
            " pickled, and nothing is unpickled; give the binary version"
            " (cifar-10-binary.tar.gz, unpacked), or Parquet files."
        )
    names = " and ".join(BINARIES.get(split, ())[:1]) or "test_batch.bin"
    return (
        f"task.data_dir={folder} holds no {split} split of CIFAR; it must be {names} and so on, of"
        f" the binary version, or {split}.parquet."
    )


def _binary_rows(file: Path, label_bytes: int, classes: int) -> Iterator[Row]:
    length = label_bytes + IMAGE_BYTES
    if file.stat().st_size % length:
        raise InputError(
            f"{file}: not whole records of {length} bytes, which {label_bytes} label bytes and an"
            " image are; unpack it anew, or choose the task that it is of."
        )
    records = np.memmap(file, np.uint8, "r").reshape(-1, length)
    for number, label in enumerate(records[:, label_bytes - 1].tolist()):
        place = f"{file}, record {number + 1}"
        if label >= classes:
            raise InputError(f"{place}: its label is beyond the {classes} classes.")
        image = ImagePlace(file=str(file), offset=number * length + label_bytes, shape=SHAPE)
        yield Row(place, {"image": image, "label": label})
