"""From a task's records to the rows a kind of model reads: what every encoding is, and texts'.

Label words are in ``label_words``, sentences for a classifier in ``sentences``.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from dpft.data.collation import TextLayout
from dpft.data.encoded_rows import EncodedRows
from dpft.data.layout import Layout
from dpft.data.text_rows import tokenize_together
from dpft.data.token_rows import TokenRows
from dpft.data.tokenization import TokenizedExample, start_id, tokenize, tokenize_prompts
from dpft.data.views import View
from dpft.kinds import IGNORED_LABEL, SEQ2SEQ
from dpft.tasks.records import Example, Record

UNCUT = 2**31
"""A length that no text has."""


@dataclass(frozen=True, kw_only=True)
class Encoding(ABC):
    """How a task's records become rows, and how these lie in a batch."""

    layout: Layout

    @abstractmethod
    def rows(self, examples: Sequence[Any]) -> Sequence[Any]:
        """Returns each record as a row, in order.

        Args:
            examples: Records of the kind the task makes.

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
        """Returns what the model reads before it writes, in tokens.

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
