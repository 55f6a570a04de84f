"""Compact storage of training records, a secret held-out split, and grouping by privacy unit.

- `PackedRecords`: dpft reads all records before it plans a run, and encodes them only after that.
  As Python objects, ten million records of 50 tokens take 6 GB. Packed by ``marshal``, they take
  2.7 GB, and less with each record that is encoded. The packed bytes are never written to disk, and
  dpft unpacks only bytes that it packed itself.
- `split_held_out`: a shuffle with a known seed would reveal which records are held out. A hash
  under a secret key does not reveal this. Each unit is assigned independently, so adding or
  removing a record moves no other record, and epsilon holds for all the records.
- `bounded_units`: with ``privacy.unit=customer_id``, the records of a customer are drawn together
  and clipped as one. Their maximum number is fixed in advance. A hash under a secret key selects
  the records to keep, independently of the records of other units.
"""

import hashlib
import hmac
import json
import marshal
import secrets
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from dpft.tasks.base import Example, LabeledImage, Record

TOGETHER = 4096
"""Number of records that are packed and encoded at once, large enough to use every core."""

_AS_THEY_ARE = frozenset({str, bool, int, float, bytes, type(None)})
Item = TypeVar("Item")


class LazySequence(Sequence[Item]):
    """A sequence that creates each item on access."""

    @abstractmethod
    def _at(self, place: int) -> Item:
        """Return the item at a position, counted from 0."""

    @overload
    def __getitem__(self, at: int) -> Item: ...

    @overload
    def __getitem__(self, at: slice) -> list[Item]: ...

    def __getitem__(self, at: int | slice) -> Item | list[Item]:
        places = range(len(self))[at]
        return (
            self._at(places) if isinstance(places, int) else [self._at(place) for place in places]
        )


class PackedRecords(LazySequence[Record]):
    """A sequence of packed records, which are created on access; access in order is fast."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._packer = _Packer()
        self._blocks = [self._packer.pack(block) for block in batched(records, TOGETHER)]
        last = len(self._packer.unpack(self._blocks[-1])) if self._blocks else 0
        self._places: Sequence[int] = range(max(0, len(self._blocks) - 1) * TOGETHER + last)
        self._unpacked: tuple[int, list[Record]] = (-1, [])

    def only(self, places: Sequence[int]) -> "PackedRecords":
        """Return the records at the given positions, which share the packed data of this object."""
        if places == range(len(self)):
            return self
        chosen = PackedRecords()
        chosen._packer, chosen._blocks = self._packer, self._blocks
        chosen._places = array("q", (self._places[at] for at in places))
        return chosen

    def drain(self) -> Iterator[Record]:
        """Yield the records, whose positions must ascend, and free each finished block.

        Afterwards, neither these records nor others that share the packed data can be read.
        """
        before = 0
        for place in self._places:
            block = place // TOGETHER
            for number in range(before, block):
                self._blocks[number] = b""
            before = block
            yield self._made(place)
        self._blocks.clear()
        self._unpacked = (-1, [])

    def __len__(self) -> int:
        return len(self._places)

    def _at(self, place: int) -> Record:
        return self._made(self._places[place])

    def __iter__(self) -> Iterator[Record]:
        return map(self._made, self._places)

    def _made(self, place: int) -> Record:
        number, within = divmod(place, TOGETHER)
        if self._unpacked[0] != number:
            self._unpacked = (number, self._packer.unpack(self._blocks[number]))
        return self._unpacked[1][within]


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items in lists of ``size`` items; the last list may be shorter."""
    rest = iter(items)
    while piece := list(islice(rest, size)):
        yield piece


def drained(records: Sequence[Record]) -> Iterator[Record]:
    """Return an iterator over the records, which frees packed records as it advances."""
    return records.drain() if isinstance(records, PackedRecords) else iter(records)


class _Packer:
    """Packer of dataclasses: a list contains the number of the class and the field values."""

    def __init__(self) -> None:
        self._names: dict[type, tuple[int, tuple[str, ...]]] = {}
        self._classes: list[tuple[type, tuple[str, ...]]] = []

    def pack(self, records: Sequence[Record]) -> bytes:
        # A text that several fields share, such as a prompt and its group, is packed once.
        return marshal.dumps([self._plain(record) for record in records])

    def unpack(self, packed: bytes) -> list[Record]:
        return [cast(Record, self._made(plain)) for plain in marshal.loads(packed)]

    def _plain(self, value: Any) -> Any:
        kind = type(value)
        if kind in _AS_THEY_ARE:
            return value
        if kind is tuple:
            return tuple(map(self._plain, value))
        if is_dataclass(kind):
            if kind not in self._names:
                names = tuple(field.name for field in fields(kind))
                self._names[kind] = len(self._classes), names
                self._classes.append((kind, names))
            number, names = self._names[kind]
            return [number, *[self._plain(getattr(value, name)) for name in names]]
        # marshal does not support subclasses of text or numbers, which libraries define.
        return str.__str__(value) if isinstance(value, str) else float(value)

    def _made(self, plain: Any) -> Any:
        kind = type(plain)
        if kind is list:
            record_class, names = self._classes[plain[0]]
            return record_class(**dict(zip(names, map(self._made, plain[1:]), strict=True)))
        return tuple(map(self._made, plain)) if kind is tuple else plain


def group_by_unit(values: Sequence[str]) -> list[list[int]]:
    """Return the positions of each unit's records, with units in order of first occurrence.

    >>> group_by_unit(["ann", "bob", "ann"])
    [[0, 2], [1]]
    """
    positions: dict[str, list[int]] = {}
    for position, value in enumerate(values):
        positions.setdefault(value, []).append(position)
    return list(positions.values())


def bounded_units(
    values: Sequence[str],
    *,
    usable: Sequence[bool] | NDArray[np.bool_],
    records_per_unit: int,
    key: bytes,
) -> list[list[int]]:
    """Return the positions of the records that training keeps for each unit, possibly none.

    If a unit has more usable records than ``records_per_unit``, dpft keeps the records with the
    smallest keyed hashes. The hash covers the unit and the number of the record within the unit.

    Args:
        values: Unit of each record.
        usable: Whether each record can be trained on, in the same order. Other records are skipped.
        records_per_unit: Maximum number of records of a unit.
        key: Secret key of 32 bytes.

    Guarantees:
        The records that are kept for a unit depend only on that unit's records and the key.
    """
    kept = []
    for positions in group_by_unit(values):
        numbered = [(number, at) for number, at in enumerate(positions) if usable[at]]
        numbered.sort(key=lambda one: _hash(key, values[one[1]], one[0]))
        kept.append(sorted(at for _, at in numbered[:records_per_unit]))
    return kept


def units_of_chunks(counts: NDArray[np.int64], usable: NDArray[np.bool_]) -> list[list[int]]:
    """Return the positions of each record's chunks that can be trained on, possibly none.

    >>> units_of_chunks(np.array([2, 1, 2]), np.array([True, True, False, True, True]))
    [[0, 1], [], [3, 4]]

    Args:
        counts: Number of chunks of each record, in the order of the records.
        usable: Whether each chunk can be trained on.
    """
    bounds = np.concatenate(([0], np.cumsum(counts)))
    return [
        [at for at in range(first, last) if usable[at]]
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]


def _hash(key: bytes, unit: str, number: int) -> bytes:
    # The number has a fixed length, so different pairs give different messages.
    message = number.to_bytes(8, "big") + unit.encode()
    return hmac.new(key, message, hashlib.sha256).digest()


KEY_BYTES = 32
_BITS = 64


def new_key() -> bytes:
    """Return a secret key from the entropy source of the operating system."""
    return secrets.token_bytes(KEY_BYTES)


def split_held_out(
    units: Iterable[str], fraction: float, key: bytes
) -> tuple[list[int], list[int]]:
    """Return the positions of the training records and of the held-out records, each ascending.

    Args:
        units: Privacy unit of each record; all records of a unit are on the same side.
        fraction: Probability that a unit is held out, above 0 and below 1.
        key: Secret key; the same key gives the same split.
    """
    threshold = int(fraction * 2**_BITS)
    kept: list[int] = []
    held: list[int] = []
    for index, unit in enumerate(units):
        # Compare the first 64 bits of HMAC-SHA256 (RFC 2104) of the unit.
        digest = hmac.digest(key, unit.encode("utf-8"), "sha256")
        number = int.from_bytes(digest[: _BITS // 8], "big")
        (held if number < threshold else kept).append(index)
    return kept, held


def records_fingerprint(records: Iterable[Record], units: Iterable[str], key: bytes) -> str:
    """Return a keyed hash of the records in order, which reveals nothing without the key.

    Args:
        records: Records that a task created from rows.
        units: Privacy unit of each record, as in ``split_held_out``.
        key: Secret key. A plain hash would let anyone confirm a guess of the records.
    """
    digest = hmac.new(key, b"records\n", "sha256")
    for record, unit in zip(records, units, strict=True):
        digest.update(json.dumps([unit, *_content(record)]).encode() + b"\n")
    return digest.hexdigest()


def _content(record: Record) -> tuple[object, ...]:
    if isinstance(record, Example):
        return record.prompt, record.target
    if isinstance(record, LabeledImage):
        image = record.image
        content = hashlib.sha256(image.content).hexdigest()
        return image.file, image.offset, *image.shape, content, *record.answer
    return *record.texts, record.label
