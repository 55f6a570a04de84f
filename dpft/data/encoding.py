"""Encodings that convert a task's records to rows of token ids.

Encodings of labeled texts are in ``classification_rows``, of corpora in ``corpus_objectives``, and
of chats in ``chat``. ``tokenization.tokenize`` defines how texts become token ids.
`tokenize_together` computes the same rows for thousands of records at once. A row is a chain of
segments of ids (start, lead, record, separator, target, end). The beginning and the kept length of
each segment are computed from lengths, for all records at once. One gather operation then writes
all rows. ``tests/data/test_encoding.py`` compares the two implementations.

Rows are stored in flat arrays (``TokenRows``), which take a few bytes per token and no Python
object per record. `fingerprint` lets a resumed run check that its training records have not
changed. It is a keyed hash, because a plain hash in a public file would let anyone confirm a guess
of the records. Key and hash stay in the run's private folder (docs/dev/design.md, rule 9).
"""

import hashlib
import hmac
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from dpft.constants import IGNORED_LABEL, SEQ2SEQ
from dpft.data.batches import EncodedRows, Layout, RowView, TextLayout
from dpft.data.tokenization import (
    TokenizedExample,
    TokenizedPrompt,
    cut_prompts,
    cuttable_prompts,
    lost_a_part,
    opening_ids,
    prompt_parts,
    start_id,
    token_ids,
    tokenize,
)
from dpft.data.training_records import TOGETHER, batched
from dpft.tasks.base import Example, Record

Numbers = NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class RaggedArray:
    """Lists of numbers, stored one after the other in one array."""

    values: Numbers
    """Numbers of all lists, shape (total length,)."""
    bounds: NDArray[np.int64]
    """Beginning of each list, followed by the end of the last list, shape (lists + 1,)."""

    @classmethod
    def of(cls, lists: Sequence[Sequence[float]], dtype: type[np.generic]) -> "RaggedArray":
        """Return the lists in one array of the given type."""
        bounds = ends_of(np.fromiter(map(len, lists), np.int64, len(lists)))
        values = np.fromiter(chain.from_iterable(lists), dtype, int(bounds[-1]))
        return cls(values=values, bounds=bounds)

    def narrowed(self) -> "RaggedArray":
        """Return the same numbers as uint16 if they are int32 and fit, else this object."""
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
        """Length of each list."""
        return np.diff(self.bounds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Some records in tokens, with one column for each field of ``TokenizedExample``."""

    ids: RaggedArray
    unlabeled: NDArray[np.int32] | None = None
    """Number of leading tokens without a label, if all other labels are the ids of the tokens."""
    labels: RaggedArray | None = None
    """Labels of the rows, if ``unlabeled`` cannot represent them."""
    types: RaggedArray | None = None
    answers: NDArray[np.int32] | None = None
    truncated: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Sequence[TokenizedExample]) -> "Block":
        """Return a block of rows that all have the same fields."""
        ids = RaggedArray.of([row.input_ids for row in rows], np.int32)
        # Labels are token ids, or else numbers that keep the precision of Python floats.
        label_types = {type(label) for row in rows for label in row.labels}
        dtype = np.int32 if label_types <= {int} else np.float64
        labels = RaggedArray.of([row.labels for row in rows], dtype)
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
        if self.labels is not None:
            labels = self.labels[at]
        else:
            assert self.unlabeled is not None
            first = int(self.unlabeled[at])
            labels = [IGNORED_LABEL] * first + ids[first:]
        return TokenizedExample(
            input_ids=ids,
            labels=labels,
            token_type_ids=None if self.types is None else self.types[at],
            answer=None if self.answers is None else int(self.answers[at]),
            truncated=bool(self.truncated[at]),
        )

    def all_labels(self) -> RaggedArray:
        """Return the labels of every row."""
        if self.labels is not None:
            return self.labels
        assert self.unlabeled is not None
        return _own_ids(self.ids, self.unlabeled)

    @property
    def has_label(self) -> NDArray[np.bool_]:
        """Whether each row has an answer to learn."""
        if self.unlabeled is not None:
            return self.ids.lengths > self.unlabeled
        labels = self.all_labels()
        counted = ends_of(labels.values != IGNORED_LABEL)
        return np.diff(counted[labels.bounds]) > 0


class TokenRows(EncodedRows):
    """Records in tokens, each converted to a ``TokenizedExample`` on access."""

    def __init__(self, rows: Iterable[TokenizedExample] = ()) -> None:
        self.blocks: list[Block] = []
        """The records, in order."""
        self._starts: list[int] = []
        self._length = 0
        self.extend(rows)

    def extend(self, rows: Iterable[TokenizedExample]) -> None:
        """Append rows."""
        for _, alike in groupby(rows, key=_fields):
            self.append(Block.of(list(alike)))

    def append(self, block: Block) -> None:
        """Append a block."""
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

    def _at(self, place: int) -> TokenizedExample:
        number = bisect_right(self._starts, place) - 1
        return self.blocks[number][place - self._starts[number]]

    def __iter__(self) -> Iterator[TokenizedExample]:
        return (block[at] for block in self.blocks for at in range(len(block)))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each record."""
        return self._of_all(lambda block: block.ids.lengths, np.int64)

    @property
    def has_label(self) -> NDArray[np.bool_]:
        """Whether each record has an answer to learn."""
        return self._of_all(lambda block: block.has_label, np.bool_)

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """Whether a part of each record's texts did not fit; private."""
        return self._of_all(lambda block: block.truncated, np.bool_)

    def _of_all(self, column: Callable[[Block], Numbers], dtype: type[np.generic]) -> Numbers:
        return np.concatenate([np.empty(0, dtype), *map(column, self.blocks)])


def encoded_rows(rows: Sequence[Any]) -> EncodedRows:
    """Return rows as ``EncodedRows``; rows that already have this type are unchanged."""
    return rows if isinstance(rows, EncodedRows) else TokenRows(rows)


def ends_of(lengths: Numbers) -> NDArray[np.int64]:
    """Return the beginning of each list in a flat array, followed by the end of the last list."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def numbered(bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position of each number in its list, counted from 0."""
    return np.arange(bounds[-1]) - np.repeat(bounds[:-1], np.diff(bounds))


def _fields(row: TokenizedExample) -> tuple[bool, bool]:
    return row.token_type_ids is None, row.answer is None


def _unlabeled(ids: RaggedArray, labels: RaggedArray) -> NDArray[np.int32] | None:
    """Return the number of leading tokens without a label in each row.

    Return None if the other labels differ from the ids.
    """
    if labels.values.dtype != np.int32 or not np.array_equal(ids.bounds, labels.bounds):
        return None
    ignored = ends_of(labels.values == IGNORED_LABEL)
    first = np.diff(ignored[labels.bounds]).astype(np.int32)
    return first if np.array_equal(_own_ids(ids, first).values, labels.values) else None


def _own_ids(ids: RaggedArray, unlabeled: NDArray[np.int32]) -> RaggedArray:
    """Return each row's ids as its labels, without labels for the first ids of the row."""
    is_first = numbered(ids.bounds) < np.repeat(unlabeled, ids.lengths)
    return RaggedArray(
        values=np.where(is_first, np.int32(IGNORED_LABEL), ids.values), bounds=ids.bounds
    )


def _columns(block: Block) -> list[RaggedArray]:
    """Return the columns of a block: ids, labels, types and the position of the answer."""
    none: list[list[int]] = [[]] * len(block)
    answers = np.zeros(len(block), np.int32) if block.answers is None else block.answers
    return [
        block.ids,
        block.all_labels(),
        RaggedArray.of(none, np.int32) if block.types is None else block.types,
        RaggedArray(values=answers, bounds=np.arange(len(block) + 1)),
    ]


def words_of(columns: Sequence[RaggedArray]) -> bytes:
    """Return the lists of all columns as bytes, record by record, each list after its length."""
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
    """Return a keyed hash of the records in order, and of their privacy units."""
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for content in encoded_rows(rows).content():
        digest.update(content)
    for block_of_units in batched(units or [], TOGETHER):
        digest.update(words_of([RaggedArray.of(block_of_units, np.int64)]))
    return digest.hexdigest()


START, LEAD, RECORD, SEPARATOR, TARGET, END = range(6)
"""Segments of a row; the segments before the target form its prompt."""
Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]


def tokenize_together(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    special_tokens: Sequence[str] = (),
) -> Block:
    """Return the rows of ``tokenize`` in flat arrays."""
    ids, begins, lengths = _stretches(examples, tokenizer, special_tokens)
    whole, is_empty = lengths.sum(axis=1), lengths[:, TARGET] == 0
    _cut_targets(begins, lengths, max_length, _flags(examples, "cut_target_end"))
    room = max_length - lengths[:, TARGET:].sum(axis=1)
    _cut_prompts(begins, lengths, room, _flags(examples, "cut_start"))
    truncated = lengths.sum(axis=1) < whole
    # Without a prompt, the first token is predicted from the start token.
    bare = lengths[:, :TARGET].sum(axis=1) == 0
    lengths[bare, START] = np.minimum(1, room[bare])
    prompts, total = lengths[:, :TARGET].sum(axis=1), lengths.sum(axis=1)
    ignored_prompt = np.where(_flags(examples, "learns_prompt"), np.minimum(1, prompts), prompts)
    bounds = ends_of(lengths.ravel())
    places = np.repeat(begins.ravel(), lengths.ravel()) + numbered(bounds)
    return Block(
        ids=RaggedArray(values=ids[places], bounds=ends_of(total)),
        unlabeled=np.where(is_empty, total, ignored_prompt).astype(np.int32),
        truncated=truncated,
    )


def _stretches(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, special_tokens: Sequence[str]
) -> tuple[NDArray[np.int32], Whole, Whole]:
    """Return all ids, and the position and the length of each segment of each record in them."""
    parts = [part for example in examples for part in prompt_parts(example)]
    prompts, prompt_places = _distinct(parts, tokenizer, special_tokens)
    targets, target_places = _distinct([example.target for example in examples], tokenizer, ())
    marks = [start_id(tokenizer), cast(int, tokenizer.eos_token_id)]
    lists = RaggedArray.of([marks[:1], *prompts, *targets, marks[1:]], np.int32)
    places = np.zeros((len(examples), 6), np.int64)
    places[:, LEAD:TARGET] = prompt_places.reshape(-1, 3) + 1
    places[:, TARGET] = target_places + 1 + len(prompts)
    places[:, END] = 1 + len(prompts) + len(targets)
    lengths = lists.lengths[places]
    lengths[:, START] = bool(opening_ids(tokenizer)) | _flags(examples, "after_start")
    return lists.values, lists.bounds[places], lengths


def _distinct(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, special_tokens: Sequence[str]
) -> tuple[list[list[int]], Whole]:
    """Return the ids of the distinct texts, and the index of each text among them."""
    numbers: dict[str, int] = {}
    places = [numbers.setdefault(text, len(numbers)) for text in texts]
    return token_ids(list(numbers), tokenizer, special_tokens), np.array(places, np.int64)


def _flags(examples: Sequence[Example], name: str) -> Flags:
    return np.array([getattr(example, name) for example in examples], np.bool_)


def _cut_targets(begins: Whole, lengths: Whole, max_length: int, cut_end: Flags) -> None:
    """Cut, in place, each target that is too long on its own.

    A target loses its end if ``cut_end`` is set for its record, and otherwise its beginning.
    """
    too_long = np.maximum(0, lengths[:, TARGET] + 1 - max_length)
    begins[:, TARGET] += np.where(cut_end, 0, too_long)
    # A text that is cut at its end keeps one token before it, to predict its first token.
    ended = np.minimum(lengths[:, TARGET], max_length - 1)
    lengths[cut_end, END] = (lengths[cut_end, TARGET] + 1) <= max_length - 1
    lengths[:, TARGET] = np.where(cut_end, ended, lengths[:, TARGET] - too_long)


def _cut_prompts(begins: Whole, lengths: Whole, room: Whole, cut_start: Flags) -> None:
    """Cut, in place, the records' texts and then the beginnings of the prompts to ``room``."""
    around = lengths[:, START] + lengths[:, LEAD] + lengths[:, SEPARATOR]
    kept = np.minimum(lengths[:, RECORD], np.maximum(0, room - around))
    begins[:, RECORD] += np.where(cut_start, lengths[:, RECORD] - kept, 0)
    lengths[:, RECORD] = kept
    excess = np.maximum(0, lengths[:, :TARGET].sum(axis=1) - room)
    for stretch in range(TARGET):
        gone = np.minimum(excess, lengths[:, stretch])
        begins[:, stretch] += gone
        lengths[:, stretch] -= gone
        excess -= gone


UNCUT = 2**31
"""Maximum length that leaves every text uncut."""


@dataclass(frozen=True, kw_only=True)
class Encoding(ABC):
    """Conversion of a task's records to rows, with the layout of the rows in a batch."""

    layout: Layout

    @abstractmethod
    def rows(self, examples: Sequence[Any]) -> Sequence[Any]:
        """Return each record as a row, in order.

        Raises:
            InputError: ``max_length`` leaves no room for the parts that must not be cut.
        """

    @abstractmethod
    def rows_together(self, examples: Sequence[Any]) -> EncodedRows:
        """Return the records as rows, stored compactly for training; empty without records."""

    def by_record(self) -> Self:
        """Return the encoding for training without clipping, with at most one view per record."""
        return self

    def picture(self, examples: Sequence[Any]) -> bytes | None:
        """Return a PNG that shows some records, or None if the records are not images."""
        return None

    def readable(self, examples: Sequence[Record]) -> list[Record]:
        """Return the records that can be read."""
        return list(examples)

    def cuts(self, example: Any) -> bool:
        """Return whether a record would be truncated."""
        return False

    def check(self, example: Any) -> None:  # noqa: B027 -- by default a model reads every record
        """Raise an ``InputError``, which does not quote the record, if the model cannot read it."""

    @property
    def view(self) -> RowView | None:
        """View that computes the model's input from a row of ``rows_together``.

        A new view is drawn each time a row is read. None means that the model reads the row itself.
        """
        return None

    def rows_in_chunks(self, examples: Sequence[Any]) -> tuple[EncodedRows, NDArray[np.int64]]:
        """Return the rows of all records, and the number of rows of each record, by default 1."""
        return self.rows_together(examples), np.ones(len(examples), np.int64)


@dataclass(frozen=True, kw_only=True)
class TokenEncoding(Encoding):
    """Encoding of records in the tokens of a tokenizer."""

    tokenizer: PreTrainedTokenizerBase
    layout: TextLayout
    max_length: int
    """Maximum number of tokens in a row; each record is cut independently."""

    @abstractmethod
    def rows(self, examples: Sequence[Any]) -> list[TokenizedExample]:
        """See ``Encoding.rows``."""

    def rows_together(self, examples: Sequence[Any]) -> TokenRows:
        """See ``Encoding.rows_together``; the rows are in flat arrays."""
        return TokenRows(self.rows(examples) if examples else ())

    def cuts(self, example: Any) -> bool:
        """See ``Encoding.cuts``."""
        return self.rows([example])[0].truncated

    def answer_ids(self, ids: list[int]) -> list[int]:
        """Return the generated tokens that belong to the answer; by default, all of them."""
        return ids

    def answer(self, text: str) -> str:
        """Return the answer that a decoded text contains; by default, the whole text."""
        return text


@dataclass(frozen=True, kw_only=True)
class TextEncoding(TokenEncoding):
    """Encoding of prompts and targets, for models that generate text."""

    special_tokens: tuple[str, ...] = ()
    """Special tokens that prompts may contain; any other special token is read as text."""
    asked_sentinels: ClassVar[tuple[int, ...]] = ()
    """Sentinel tokens for the gaps of a prompt; empty, because these prompts have no gaps."""

    def reference(self, example: Example) -> str:
        """Return the reference text that a generated answer is compared with."""
        return example.target

    def rows(self, examples: Sequence[Example]) -> list[TokenizedExample]:
        """See ``Encoding.rows``; for a seq2seq model, prompt and target are cut separately."""
        if self.layout.kind != SEQ2SEQ:
            return tokenize(
                examples,
                self.tokenizer,
                max_length=self.max_length,
                special_tokens=self.special_tokens,
            )
        sources = self.prompts(examples, max_length=self.max_length, max_new_tokens=0)
        empty = [replace(e, prompt="", lead="", separator="") for e in examples]
        targets = tokenize(empty, self.tokenizer, max_length=self.max_length)

        def read_whole(places: Sequence[int]) -> list[list[int]]:
            subset = [examples[at] for at in places]
            return self.prompts(subset, max_length=UNCUT, max_new_tokens=0)

        cut = lost_a_part(sources, self.max_length, read_whole)
        return [
            TokenizedExample(
                input_ids=source,
                # The target and the end-of-text token; an empty target has no label.
                labels=[int(label) for label in row.labels if label >= 0] or [IGNORED_LABEL],
                truncated=row.truncated or is_cut,
            )
            for source, row, is_cut in zip(sources, targets, cut, strict=True)
        ]

    def rows_together(self, examples: Sequence[Example]) -> TokenRows:
        """See ``Encoding.rows_together``."""
        if self.layout.kind == SEQ2SEQ or not examples:
            return super().rows_together(examples)
        rows = TokenRows()
        rows.append(
            tokenize_together(
                examples,
                self.tokenizer,
                max_length=self.max_length,
                special_tokens=self.special_tokens,
            )
        )
        return rows

    def prompts(
        self, examples: Sequence[Example], *, max_length: int, max_new_tokens: int
    ) -> list[list[int]]:
        """Return the token ids of prompts for generation.

        Args:
            examples: Records, whose targets are not read.
            max_length: Maximum number of tokens of prompt and answer together.
            max_new_tokens: Maximum number of tokens of the answer. A seq2seq model needs no room
                for them, because its decoder generates them.

        Raises:
            InputError: There is no room for a prompt.
        """
        if self.layout.kind != SEQ2SEQ:
            start = start_id(self.tokenizer)
            prompts = cut_prompts(self._cuttable(examples), max_length, max_new_tokens)
            return [prompt or [start] for prompt in prompts]
        end = self.tokenizer.eos_token_id
        return [[*prompt, end] for prompt in cut_prompts(self._cuttable(examples), max_length - 1)]

    def _cuttable(self, examples: Sequence[Example]) -> list[TokenizedPrompt]:
        """Return the prompt of each example, divided into parts that are cut differently."""
        return cuttable_prompts(examples, self.tokenizer, self.special_tokens)
