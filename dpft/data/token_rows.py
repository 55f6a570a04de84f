"""Encoded records in flat arrays: a few bytes a token, and no Python object a record.

`fingerprint` tells whether training records are those a run began with: a keyed hash, since a plain
one in a public file would tell anyone who guesses the records that the guess is right; key and hash
stay in the run's private folder (docs/design.md, rule 9).
"""

import hashlib
import hmac
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from dpft.data.batches import EncodedRows
from dpft.data.tokenization import TokenizedExample
from dpft.data.training_records import TOGETHER, batched
from dpft.kinds import IGNORED_LABEL

Numbers = NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class RaggedArray:
    """Lists of numbers, one after the other in one array."""

    values: Numbers
    """Their numbers, shape (all of them,)."""
    bounds: NDArray[np.int64]
    """Where each begins, and then where the last one ends, shape (lists + 1,)."""

    @classmethod
    def of(cls, lists: Sequence[Sequence[float]], dtype: type[np.generic]) -> "RaggedArray":
        """Returns the lists in one array of that type."""
        bounds = ends_of(np.fromiter(map(len, lists), np.int64, len(lists)))
        values = np.fromiter(chain.from_iterable(lists), dtype, int(bounds[-1]))
        return cls(values=values, bounds=bounds)

    def narrowed(self) -> "RaggedArray":
        """Returns the same numbers in two bytes each, where each is a whole one below 2^16."""
        values = self.values
        if values.dtype != np.int32 or not values.size:
            return self
        if values.min() < 0 or values.max() > np.iinfo(np.uint16).max:
            return self
        return replace(self, values=values.astype(np.uint16))

    def __getitem__(self, at: int) -> list[Any]:
        numbers: list[Any] = self.values[self.bounds[at] : self.bounds[at + 1]].tolist()
        return numbers

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How long each list is."""
        return np.diff(self.bounds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Some records in tokens, the fields of ``TokenizedExample`` side by side."""

    ids: RaggedArray
    unlabeled: NDArray[np.int32] | None = None
    """Of texts whose labels are their own ids but for the first ones: how many those are."""
    labels: RaggedArray | None = None
    """The labels of any others."""
    types: RaggedArray | None = None
    answers: NDArray[np.int32] | None = None
    truncated: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Sequence[TokenizedExample]) -> "Block":
        """Returns rows that have the same fields as each other."""
        ids = RaggedArray.of([row.input_ids for row in rows], np.int32)
        labels = _labels(rows)
        unlabeled = _unlabeled(ids, labels)
        first = rows[0]
        return cls(
            ids=ids,
            unlabeled=unlabeled,
            labels=labels if unlabeled is None else None,
            types=None
            if first.token_type_ids is None
            else RaggedArray.of([row.token_type_ids or [] for row in rows], np.int32),
            answers=None
            if first.answer is None
            else np.array([row.answer for row in rows], np.int32),
            truncated=np.array([row.truncated for row in rows], np.bool_),
        )

    def __len__(self) -> int:
        return len(self.truncated)

    def __getitem__(self, at: int) -> TokenizedExample:
        ids = self.ids[at]
        return TokenizedExample(
            input_ids=ids,
            labels=self._labels_of(at, ids),
            token_type_ids=None if self.types is None else self.types[at],
            answer=None if self.answers is None else int(self.answers[at]),
            truncated=bool(self.truncated[at]),
        )

    def _labels_of(self, at: int, ids: list[int]) -> list[Any]:
        if self.labels is not None:
            return self.labels[at]
        assert self.unlabeled is not None
        first = int(self.unlabeled[at])
        return [IGNORED_LABEL] * first + ids[first:]

    def all_labels(self) -> RaggedArray:
        """Returns every row's labels."""
        if self.labels is not None:
            return self.labels
        assert self.unlabeled is not None
        return _own_ids(self.ids, self.unlabeled)

    @property
    def has_label(self) -> NDArray[np.bool_]:
        """Whether each row has anything to learn."""
        if self.unlabeled is not None:
            return self.ids.lengths > self.unlabeled
        labels = self.all_labels()
        counted = ends_of(labels.values != IGNORED_LABEL)
        return np.diff(counted[labels.bounds]) > 0


class TokenRows(EncodedRows):
    """Records in tokens, each made a ``TokenizedExample`` when it is asked for."""

    def __init__(self, rows: Iterable[TokenizedExample] = ()) -> None:
        self.blocks: list[Block] = []
        """The records, in order."""
        self._starts: list[int] = []
        self._length = 0
        self.extend(rows)

    def extend(self, rows: Iterable[TokenizedExample]) -> None:
        """Adds rows at the end."""
        for _, alike in groupby(rows, key=_fields):
            self.append(Block.of(list(alike)))

    def append(self, block: Block) -> None:
        """Adds a block at the end."""
        self.blocks.append(replace(block, ids=block.ids.narrowed()))
        self._starts.append(self._length)
        self._length += len(block)

    def add(self, rows: "TokenRows") -> None:
        """See ``EncodedRows.add``."""
        for block in rows.blocks:
            self.append(block)

    def only(self, places: NDArray[np.bool_]) -> "TokenRows":
        """See ``EncodedRows.only``."""
        if places.all():
            return self
        return TokenRows(row for row, is_one in zip(self, places, strict=True) if is_one)

    def content(self) -> Iterator[bytes]:
        """See ``EncodedRows.content``."""
        return (words_of(_columns(block)) for block in self.blocks)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> TokenizedExample: ...

    @overload
    def __getitem__(self, at: slice) -> list[TokenizedExample]: ...

    def __getitem__(self, at: int | slice) -> TokenizedExample | list[TokenizedExample]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(self._length))]
        place = range(self._length)[at]
        number = bisect_right(self._starts, place) - 1
        return self.blocks[number][place - self._starts[number]]

    def __iter__(self) -> Iterator[TokenizedExample]:
        return (block[at] for block in self.blocks for at in range(len(block)))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many tokens each record has."""
        return self._of_all(lambda block: block.ids.lengths, np.int64)

    @property
    def has_label(self) -> NDArray[np.bool_]:
        """Whether each record has anything to learn."""
        return self._of_all(lambda block: block.has_label, np.bool_)

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """Whether a part of each record's texts had no room; private."""
        return self._of_all(lambda block: block.truncated, np.bool_)

    def _of_all(self, column: Callable[[Block], Numbers], dtype: type[np.generic]) -> Numbers:
        return np.concatenate([np.empty(0, dtype), *map(column, self.blocks)])


def encoded_rows(rows: Sequence[Any]) -> EncodedRows:
    """Returns rows as they are kept; those that already are are returned themselves."""
    return rows if isinstance(rows, EncodedRows) else TokenRows(rows)


def ends_of(lengths: Numbers) -> NDArray[np.int64]:
    """Returns where each of some lists begins, and then where the last one ends."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def numbered(bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the place of each number in its own list, counted from 0."""
    return np.arange(bounds[-1]) - np.repeat(bounds[:-1], np.diff(bounds))


def _fields(row: TokenizedExample) -> tuple[bool, bool]:
    return row.token_type_ids is None, row.answer is None


def _labels(rows: Sequence[TokenizedExample]) -> RaggedArray:
    """Returns the labels of rows: token ids, or other numbers as Python has them."""
    kinds = {type(label) for row in rows for label in row.labels}
    dtype = np.int32 if kinds <= {int} else np.float64
    return RaggedArray.of([row.labels for row in rows], dtype)


def _unlabeled(ids: RaggedArray, labels: RaggedArray) -> NDArray[np.int32] | None:
    """Returns how many of each row's first labels are none; None where others differ from ids."""
    if labels.values.dtype != np.int32 or not np.array_equal(ids.bounds, labels.bounds):
        return None
    ignored = ends_of(labels.values == IGNORED_LABEL)
    first = np.diff(ignored[labels.bounds]).astype(np.int32)
    return first if np.array_equal(_own_ids(ids, first).values, labels.values) else None


def _own_ids(ids: RaggedArray, unlabeled: NDArray[np.int32]) -> RaggedArray:
    """Returns the ids of rows as their labels, the first ones of each without any."""
    is_first = numbered(ids.bounds) < np.repeat(unlabeled, ids.lengths)
    return RaggedArray(
        values=np.where(is_first, np.int32(IGNORED_LABEL), ids.values), bounds=ids.bounds
    )


def _columns(block: Block) -> list[RaggedArray]:
    """Returns the columns of a block: ids, labels, types and the position of the answer."""
    none: list[list[int]] = [[]] * len(block)
    answers = np.zeros(len(block), np.int32) if block.answers is None else block.answers
    return [
        block.ids,
        block.all_labels(),
        RaggedArray.of(none, np.int32) if block.types is None else block.types,
        RaggedArray(values=answers, bounds=np.arange(len(block) + 1)),
    ]


def words_of(columns: Sequence[RaggedArray]) -> bytes:
    """Returns record by record the lists of each column, each list after its length."""
    lengths = np.stack([column.lengths for column in columns], axis=1)
    starts = ends_of(lengths.ravel() + 1)[:-1].reshape(lengths.shape)
    words = np.empty(int(lengths.sum() + lengths.size), np.uint64)
    words[starts] = lengths.astype(">u8").view(np.uint64)
    for column, start in zip(columns, starts.T, strict=True):
        places = np.repeat(start + 1, column.lengths) + numbered(column.bounds)
        # exact: token ids are far below 2**53
        words[places] = column.values.astype(np.float64).view(np.uint64)
    return words.tobytes()


def fingerprint(rows: Sequence[Any], units: Sequence[Sequence[int]] | None, key: bytes) -> str:
    """Returns a keyed hash of the records in their order, and of whose they are."""
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for content in encoded_rows(rows).content():
        digest.update(content)
    for some in batched(units or [], TOGETHER):
        digest.update(words_of([RaggedArray.of(some, np.int64)]))
    return digest.hexdigest()
