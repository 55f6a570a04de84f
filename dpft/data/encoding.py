"""Encodings: from a task's records to rows of token ids; the base class, and the one of texts.

Encodings of labeled texts are in ``classification_rows``, of corpora in ``corpus_rows``, of chats
in ``chat``. Texts become token ids as ``tokenization.tokenize`` defines it, thousands of records in
one go: a row is a chain of stretches of ids (start, lead, record, separator, target, end); where
each begins and how much of it stays is arithmetic on lengths, done for all records at once, and one
gather writes all rows. ``tests/data/test_encoding.py`` holds the two definitions against each
other.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from dpft.data.batches import EncodedRows, Layout, TextLayout, View
from dpft.data.token_rows import Block, RaggedArray, TokenRows, ends_of, numbered
from dpft.data.tokenization import (
    TokenizedExample,
    opening_ids,
    prompt_parts,
    start_id,
    token_ids,
    tokenize,
    tokenize_prompts,
)
from dpft.kinds import IGNORED_LABEL, SEQ2SEQ
from dpft.tasks.records import Example, Record

START, LEAD, RECORD, SEPARATOR, TARGET, END = range(6)
"""The stretches of a row; those before the target are its prompt."""
Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]


def tokenize_together(
    examples: Sequence[Example],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    special_tokens: Sequence[str] = (),
) -> Block:
    """Returns the rows of ``tokenize``, in flat arrays.

    Args:
        examples: At least one.
        tokenizer: As ``tokenize``.
        max_length: As ``tokenize``.
        special_tokens: As ``tokenize``.
    """
    ids, begins, lengths = _stretches(examples, tokenizer, special_tokens)
    whole, is_empty = lengths.sum(axis=1), lengths[:, TARGET] == 0
    _cut_targets(begins, lengths, max_length, _flags(examples, "cut_target_end"))
    room = max_length - lengths[:, TARGET:].sum(axis=1)
    _cut_prompts(begins, lengths, room, _flags(examples, "cut_start"))
    truncated = lengths.sum(axis=1) < whole
    # Where there is no prompt, a first token is predicted from the start token.
    bare = lengths[:, :TARGET].sum(axis=1) == 0
    lengths[bare, START] = np.minimum(1, room[bare])
    prompts, total = lengths[:, :TARGET].sum(axis=1), lengths.sum(axis=1)
    given = np.where(_flags(examples, "learns_prompt"), np.minimum(1, prompts), prompts)
    return Block(
        ids=_gathered(ids, begins, lengths),
        unlabeled=np.where(is_empty, total, given).astype(np.int32),
        truncated=truncated,
    )


def _stretches(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, special_tokens: Sequence[str]
) -> tuple[NDArray[np.int32], Whole, Whole]:
    """Returns ids, and of each record where in them its stretches begin and how long they are."""
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
    """Returns the ids of the texts, equal ones once, and which of them each text has."""
    numbers: dict[str, int] = {}
    places = [numbers.setdefault(text, len(numbers)) for text in texts]
    return token_ids(list(numbers), tokenizer, special_tokens), np.array(places, np.int64)


def _flags(examples: Sequence[Example], name: str) -> Flags:
    return np.array([getattr(example, name) for example in examples], np.bool_)


def _cut_targets(begins: Whole, lengths: Whole, max_length: int, cut_end: Flags) -> None:
    """Cuts a target that is too long by itself: its end where that is said, else its beginning."""
    too_long = np.maximum(0, lengths[:, TARGET] + 1 - max_length)
    begins[:, TARGET] += np.where(cut_end, 0, too_long)
    # A text cut at its end keeps a token before it, from which its first one is predicted.
    ended = np.minimum(lengths[:, TARGET], max_length - 1)
    lengths[cut_end, END] = (lengths[cut_end, TARGET] + 1) <= max_length - 1
    lengths[:, TARGET] = np.where(cut_end, ended, lengths[:, TARGET] - too_long)


def _cut_prompts(begins: Whole, lengths: Whole, room: Whole, cut_start: Flags) -> None:
    """Cuts the records' own texts, and then the prompts' beginnings, to the room there is."""
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


def _gathered(ids: NDArray[np.int32], begins: Whole, lengths: Whole) -> RaggedArray:
    """Returns the rows that stretches of ids make, one row after the other."""
    bounds = ends_of(lengths.ravel())
    places = np.repeat(begins.ravel(), lengths.ravel()) + numbered(bounds)
    return RaggedArray(values=ids[places], bounds=ends_of(lengths.sum(axis=1)))


UNCUT = 2**31
"""A length that no text has."""


@dataclass(frozen=True, kw_only=True)
class Encoding(ABC):
    """How a task's records become rows, and how these lie in a batch."""

    layout: Layout

    @abstractmethod
    def rows(self, examples: Sequence[Any]) -> Sequence[Any]:
        """Returns each record as a row, in order.

        Raises:
            InputError: ``max_length`` leaves no room for what must not be cut.
        """

    @abstractmethod
    def rows_together(self, examples: Sequence[Any]) -> EncodedRows:
        """Returns the rows of ``rows`` as they are kept for training; none of no records."""

    def by_record(self) -> Self:
        """Returns it for steps that do not clip: a record is at most one random view of it."""
        return self

    def picture(self, examples: Sequence[Any]) -> bytes | None:
        """Returns some records as one PNG, to be looked at; None of what is no image."""
        return None

    def readable(self, examples: Sequence[Record]) -> list[Record]:
        """Returns those of some records that can be read."""
        return list(examples)

    def cuts(self, example: Any) -> bool:
        """Returns whether a part of a record would have no room."""
        return False

    @property
    def view(self) -> View | None:
        """Makes what a model reads of a row of ``rows_together``, drawn anew each time.

        None: it reads the row itself.
        """
        return None

    def rows_in_chunks(self, examples: Sequence[Any]) -> tuple[EncodedRows, NDArray[np.int64]]:
        """Returns the rows of all records, and how many each has: one, unless it has several."""
        return self.rows_together(examples), np.ones(len(examples), np.int64)


@dataclass(frozen=True, kw_only=True)
class TokenEncoding(Encoding):
    """Records in the tokens of a tokenizer."""

    tokenizer: PreTrainedTokenizerBase
    layout: TextLayout
    max_length: int
    """Most tokens in a row; each record is cut on its own."""

    @abstractmethod
    def rows(self, examples: Sequence[Any]) -> list[TokenizedExample]:
        """See ``Encoding.rows``."""

    def rows_together(self, examples: Sequence[Any]) -> TokenRows:
        """See ``Encoding.rows_together``: in flat arrays."""
        return TokenRows(self.rows(examples) if examples else ())

    def cuts(self, example: Any) -> bool:
        """See ``Encoding.cuts``."""
        return self.rows([example])[0].truncated


@dataclass(frozen=True, kw_only=True)
class TextEncoding(TokenEncoding):
    """Prompts and targets, for models that write."""

    special_tokens: tuple[str, ...] = ()
    """Tokens that prompts spell, known to the tokenizer; any other is read as text."""
    asked_sentinels: ClassVar[tuple[int, ...]] = ()
    """Tokens that stand for gaps of a prompt: none."""

    def rows(self, examples: Sequence[Example]) -> list[TokenizedExample]:
        """See ``Encoding.rows``; for a seq2seq model prompt and target are cut apart."""
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
        return [
            TokenizedExample(
                input_ids=source, labels=_target(row), truncated=row.truncated or is_cut
            )
            for source, row, is_cut in zip(
                sources, targets, self._cut_sources(examples, sources), strict=True
            )
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

    def _cut_sources(
        self, examples: Sequence[Example], sources: Sequence[Sequence[int]]
    ) -> list[bool]:
        """Returns which sources lost a part; only those that fill their room are read again."""
        full = [at for at, source in enumerate(sources) if len(source) == self.max_length]
        whole = self.prompts([examples[at] for at in full], max_length=UNCUT, max_new_tokens=0)
        cut = {at for at, ids in zip(full, whole, strict=True) if len(ids) > self.max_length}
        return [at in cut for at in range(len(sources))]

    def prompts(
        self, examples: Sequence[Example], *, max_length: int, max_new_tokens: int
    ) -> list[list[int]]:
        """Returns the token ids of prompts for generation.

        Args:
            examples: The records; their targets are not read.
            max_length: Most tokens of prompt and answer together.
            max_new_tokens: Most tokens of the answer; a seq2seq model writes them elsewhere.

        Raises:
            InputError: There is no room for a prompt.
        """
        if self.layout.kind != SEQ2SEQ:
            start = start_id(self.tokenizer)
            prompts = self._prompts(examples, max_length, max_new_tokens)
            return [prompt or [start] for prompt in prompts]
        end = self.tokenizer.eos_token_id
        return [[*prompt, end] for prompt in self._prompts(examples, max_length - 1, 0)]

    def _prompts(
        self, examples: Sequence[Example], max_length: int, max_new_tokens: int
    ) -> list[list[int]]:
        return tokenize_prompts(
            examples,
            self.tokenizer,
            max_length=max_length,
            max_new_tokens=max_new_tokens,
            special_tokens=self.special_tokens,
        )


def _target(row: TokenizedExample) -> list[int]:
    """Returns the labels a decoder learns: target and end-of-text; no label of an empty target."""
    return [int(label) for label in row.labels if label >= 0] or [IGNORED_LABEL]
