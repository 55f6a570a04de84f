"""Files of each split in a folder, including the shards of data sets from the Hub.

    DIR/train.csv                             DIR/test.csv
    DIR/train-00000-of-00002.parquet          DIR/train-00001-of-00002.parquet
    DIR/data/train-00000-of-00001.jsonl       a folder as on the Hub

This module is separate from the readers of rows, because tables, images and corpora name their
splits in the same way.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from dpft.errors import InputError

SHARD = re.compile(r"-(?P<number>\d+)-of-(?P<total>\d+)(?:-[0-9a-f]+)?(?=\.|$)")
"""The end of a shard's name. The Hub once appended a hash to it."""


def split_of(name: str) -> str:
    """Return a file name without its ending and without the number of a shard.

    >>> split_of("train-00000-of-00002.jsonl.gz"), split_of("test.csv"), split_of("train-old.csv")
    ('train', 'test', 'train-old')
    """
    return SHARD.sub("", name, count=1).partition(".")[0]


def files_by_split(
    folder: Path, splits: Collection[str], endings: Iterable[str]
) -> dict[str, list[Path]]:
    """Return the files of each split in a folder, in the order of their names.

    The files are in the folder itself, or in its subfolder ``data`` if the folder itself has no
    files of a split.

    Args:
        folder: Folder with the files. If the folder does not exist, the result is empty.
        splits: Names of the splits, or of their parts.
        endings: Endings of the file names, such as ``.csv``.

    Raises:
        InputError: The folder cannot be read.
    """
    for place in (folder, folder / "data"):
        files: dict[str, list[Path]] = {}
        for path in _entries(place):
            split = split_of(path.name)
            _, dot, ending = path.name.partition(".")
            if split in splits and dot + ending in endings:
                files.setdefault(split, []).append(path)
        if files:
            return files
    return {}


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}.", key=str(folder)) from error


def in_order(files: Sequence[Path]) -> list[Path]:
    """Return the files of one split in the order of their shards.

    A file without a number counts as the only shard. Shards are numbered from 0 or from 1.

    Args:
        files: Files of one split, at least one.

    Raises:
        InputError: Two files are the same shard or belong to different sets, or a shard is missing.
    """
    shards: dict[int, Path] = {}
    total = _number_and_total(files[0])[1]
    for path in files:
        number, of_total = _number_and_total(path)
        other = shards.setdefault(number, path if of_total == total else files[0])
        if other is not path:
            raise InputError(
                f"{path.parent} contains {other.name} and {path.name}, which are not shards of the"
                f" same set. Keep only one {split_of(path.name)} split.",
                key=str(path.parent),
                value=path.name,
            )
    start = int(0 not in shards and total in shards)
    missing = next((number for number in range(start, start + total) if number not in shards), None)
    if missing is not None:
        lacking = SHARD.sub(
            lambda m: f"-{missing:0{len(m['number'])}d}-of-{m['total']}", files[0].name
        )
        raise InputError(
            f"{files[0].parent} has no shard {lacking}, but the {split_of(files[0].name)} split"
            f" needs all {total} shards. Add the file.",
            key=str(files[0].parent),
            value=lacking,
        )
    return [shards[number] for number in sorted(shards)]


def _number_and_total(path: Path) -> tuple[int, int]:
    shard = SHARD.search(path.name)
    return (int(shard["number"]), int(shard["total"])) if shard else (0, 1)
