"""Store training records compactly, hold some of them out by a secret key, group them by unit.

- `PackedRecords`: every record is read before a run is planned, and none is encoded before that. As
  Python objects ten million records of 50 tokens take 6 GB; packed by ``marshal`` they take 2.7 GB,
  and less with each one that is encoded. Nothing is written, and nothing is unpacked that was not
  packed here.
- `split_held_out`: a shuffle with a known seed would say which records were trained on; a keyed
  hash says it to none who lacks the key. Each unit falls on a side on its own, so one record more
  or less moves no other, and epsilon holds as for all the records.
- `bounded_units`: with ``privacy.unit=customer_id`` a customer's records are drawn together and
  clipped as one. Their number is bounded in advance; which of them are kept is decided by a hash
  under a secret key, in which other units' records have no part.
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
"""Records that are packed, and encoded, at once: enough for every core to have some thousands."""

_AS_THEY_ARE = frozenset({str, bool, int, float, bytes, type(None)})
Item = TypeVar("Item")


class LazySequence(Sequence[Item]):
    """Items in order, each made when it is asked for."""

    @abstractmethod
    def _at(self, place: int) -> Item:
        """Return the item at a place, counted from 0."""

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
    """Records in order, each made when it is asked for; those asked for in order are made fast."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._packer = _Packer()
        self._blocks = [self._packer.pack(block) for block in batched(records, TOGETHER)]
        last = len(self._packer.unpack(self._blocks[-1])) if self._blocks else 0
        self._places: Sequence[int] = range(max(0, len(self._blocks) - 1) * TOGETHER + last)
        self._unpacked: tuple[int, list[Record]] = (-1, [])

    def only(self, places: Sequence[int]) -> "PackedRecords":
        """Return the records at some places alone, held together with the others."""
        if places == range(len(self)):
            return self
        chosen = PackedRecords()
        chosen._packer, chosen._blocks = self._packer, self._blocks
        chosen._places = array("q", (self._places[at] for at in places))
        return chosen

    def drain(self) -> Iterator[Record]:
        """Yield the records, places ascending, and forget those of each block that is done.

        No record of these can be had afterwards, nor of others that are held together with them.
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
    """Yield the items in lists of a size; the last one may be shorter."""
    rest = iter(items)
    while piece := list(islice(rest, size)):
        yield piece


def drained(records: Sequence[Record]) -> Iterator[Record]:
    """Yield each record once; packed ones are forgotten meanwhile."""
    return records.drain() if isinstance(records, PackedRecords) else iter(records)


class _Packer:
    """Packs dataclasses: a list holds the number of its class and the values of its fields."""

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
        # what marshal refuses: a library's own kind of text or number
        return str.__str__(value) if isinstance(value, str) else float(value)

    def _made(self, plain: Any) -> Any:
        kind = type(plain)
        if kind is list:
            record_class, names = self._classes[plain[0]]
            return record_class(**dict(zip(names, map(self._made, plain[1:]), strict=True)))
        return tuple(map(self._made, plain)) if kind is tuple else plain


def group_by_unit(values: Sequence[str]) -> list[list[int]]:
    """Return the positions of each unit's records, units in the order in which each first occurs.

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
    """Return the positions of the records that training keeps of each unit, maybe none.

    Of a unit with more usable records than ``records_per_unit``, those of the smallest keyed
    hashes of the unit and the record's number within it are kept.

    Args:
        values: The unit of each record.
        usable: Whether a record can be trained on, in the same order; the others are left out.
        records_per_unit: Most records of a unit.
        key: Secret; 32 bytes.

    Guarantees:
        What is kept of a unit is a function of that unit's own records and the key.
    """
    kept = []
    for positions in group_by_unit(values):
        numbered = [(number, at) for number, at in enumerate(positions) if usable[at]]
        numbered.sort(key=lambda one: _hash(key, values[one[1]], one[0]))
        kept.append(sorted(at for _, at in numbered[:records_per_unit]))
    return kept


def units_of_chunks(counts: NDArray[np.int64], usable: NDArray[np.bool_]) -> list[list[int]]:
    """Return the positions of each record's chunks that can be trained on, maybe none.

    >>> units_of_chunks(np.array([2, 1, 2]), np.array([True, True, False, True, True]))
    [[0, 1], [], [3, 4]]

    Args:
        counts: How many chunks each record has, in the order of the records.
        usable: Whether a chunk can be trained on.
    """
    bounds = np.concatenate(([0], np.cumsum(counts)))
    return [
        [at for at in range(first, last) if usable[at]]
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]


def _hash(key: bytes, unit: str, number: int) -> bytes:
    # The number has a fixed length, so that no two pairs are written alike.
    message = number.to_bytes(8, "big") + unit.encode()
    return hmac.new(key, message, hashlib.sha256).digest()


KEY_BYTES = 32
_BITS = 64


def new_key() -> bytes:
    """Return a secret key from the operating system's entropy."""
    return secrets.token_bytes(KEY_BYTES)


def split_held_out(
    units: Iterable[str], fraction: float, key: bytes
) -> tuple[list[int], list[int]]:
    """Return the positions of the units to train on, and of those held out, each ascending.

    Args:
        units: The privacy unit of each record; equal ones fall on one side.
        fraction: Probability of a unit to be held out, above 0 and below 1.
        key: Secret; the same key gives the same sides.
    """
    threshold = int(fraction * 2**_BITS)
    kept: list[int] = []
    held: list[int] = []
    for index, unit in enumerate(units):
        # The first bits of HMAC-SHA256 (RFC 2104) of the unit.
        digest = hmac.digest(key, unit.encode("utf-8"), "sha256")
        number = int.from_bytes(digest[: _BITS // 8], "big")
        (held if number < threshold else kept).append(index)
    return kept, held


def records_fingerprint(records: Iterable[Record], units: Iterable[str], key: bytes) -> str:
    """Return a keyed hash of the records in their order, which says nothing without the key.

    Args:
        records: What a task made of rows.
        units: As in ``split_held_out``, one for each.
        key: Secret: a plain hash would tell who guesses the records whether they are these.
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
