"""Records as a task makes them, packed: about the bytes of their texts, and no object a record.

Every record is read before a run is planned, and none is encoded before that, so for a while all
texts are in memory at once. As Python objects ten million records of 50 tokens take 6 GB; packed
they take 2.7 GB, and less with each one that is encoded. They are packed with ``marshal``, in
memory alone: nothing is written, and nothing is unpacked that was not packed here.
"""

import marshal
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any, TypeVar, cast, overload

from dpft.tasks.records import Record

TOGETHER = 4096
"""Records that are packed, and encoded, at once: enough for every core to have some thousands."""

_AS_THEY_ARE = frozenset({str, bool, int, float, bytes, type(None)})
Item = TypeVar("Item")


class PackedRecords(Sequence[Record]):
    """Records in order, each made when it is asked for; those asked for in order are made fast."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._packer = _Packer()
        self._blocks = [self._packer.pack(some) for some in pieces(records, TOGETHER)]
        last = len(self._packer.unpack(self._blocks[-1])) if self._blocks else 0
        self._places: Sequence[int] = range(max(0, len(self._blocks) - 1) * TOGETHER + last)
        self._unpacked: tuple[int, list[Record]] = (-1, [])

    def only(self, places: Sequence[int]) -> "PackedRecords":
        """Returns the records at some places alone, held together with the others."""
        if places == range(len(self)):
            return self
        chosen = PackedRecords()
        chosen._packer, chosen._blocks = self._packer, self._blocks
        chosen._places = array("q", (self._places[at] for at in places))
        return chosen

    def drain(self) -> Iterator[Record]:
        """Yields the records, places ascending, and forgets those of each block that is done.

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

    @overload
    def __getitem__(self, at: int) -> Record: ...

    @overload
    def __getitem__(self, at: slice) -> list[Record]: ...

    def __getitem__(self, at: int | slice) -> Record | list[Record]:
        if isinstance(at, slice):
            return [self._made(place) for place in self._places[at]]
        return self._made(self._places[at])

    def __iter__(self) -> Iterator[Record]:
        return map(self._made, self._places)

    def _made(self, place: int) -> Record:
        number, within = divmod(place, TOGETHER)
        if self._unpacked[0] != number:
            self._unpacked = (number, self._packer.unpack(self._blocks[number]))
        return self._unpacked[1][within]


def pieces(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yields the items in lists of a size; the last one may be shorter."""
    rest = iter(items)
    while piece := list(islice(rest, size)):
        yield piece


def drained(records: Sequence[Record]) -> Iterator[Record]:
    """Yields each record once; packed ones are forgotten meanwhile."""
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
            number, names = self._known(kind)
            return [number, *[self._plain(getattr(value, name)) for name in names]]
        # what marshal refuses: a library's own kind of text or number
        return str.__str__(value) if isinstance(value, str) else float(value)

    def _known(self, kind: type) -> tuple[int, tuple[str, ...]]:
        if kind not in self._names:
            names = tuple(field.name for field in fields(kind))
            self._names[kind] = len(self._classes), names
            self._classes.append((kind, names))
        return self._names[kind]

    def _made(self, plain: Any) -> Any:
        kind = type(plain)
        if kind is list:
            made, names = self._classes[plain[0]]
            return made(**dict(zip(names, map(self._made, plain[1:]), strict=True)))
        return tuple(map(self._made, plain)) if kind is tuple else plain
