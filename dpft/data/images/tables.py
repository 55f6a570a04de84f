"""Parquet files with images in them, as data sets lie on the Hugging Face hub."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from dpft.data.readers import Row, file_rows


def parquet_files(folder: Path, split: str) -> list[Path]:
    """Returns a split's Parquet files: train.parquet, or data/train-00000-of-00002.parquet.

    Args:
        folder: Where they, or a folder ``data`` with them, may be.
        split: Name of the split.
    """
    found = [folder / f"{split}.parquet"]
    for place in (folder, folder / "data"):
        found += sorted(place.glob(f"{split}-*.parquet"))
    return [file for file in found if file.is_file()]


def parquet_rows(file: Path, names: Mapping[str, str]) -> Iterator[Row]:
    """Yields a file's rows, its columns under the names of the task.

    Args:
        file: The file.
        names: Of columns as files may call them, to the task's own.

    Raises:
        InputError: It cannot be read.
    """
    for row in file_rows(file):
        values = {names.get(name, name): value for name, value in row.values.items()}
        yield Row(row.place, values)
