"""Tokenized preference pairs: a pair is one record and two contiguous rows of a batch."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from dpft.data.batches import Batch, EncodedRows, TextLayout
from dpft.data.encoding import TextEncoding, TokenRows
from dpft.data.preference_loss import PreferenceLoss
from dpft.data.tokenization import TokenizedExample
from dpft.errors import InputError
from dpft.tasks.base import Example


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizedPair:
    """A prompt with its chosen answer, and the same prompt with its rejected answer."""

    chosen: TokenizedExample
    rejected: TokenizedExample
    references: tuple[float, float] | None = None
    """Log-probabilities of the two answers under the reference model; None: not computed."""


class PairRows(EncodedRows):
    """Tokenized pairs, with their reference log-probabilities once these are computed."""

    def __init__(
        self,
        chosen: TokenRows,
        rejected: TokenRows,
        references: NDArray[np.float32] | None = None,
    ) -> None:
        """Store the rows; ``references`` has shape (pairs, 2)."""
        self.chosen, self.rejected, self.references = chosen, rejected, references

    def __len__(self) -> int:
        return len(self.chosen)

    def _at(self, place: int) -> TokenizedPair:
        references = None
        if self.references is not None:
            references = (float(self.references[place, 0]), float(self.references[place, 1]))
        return TokenizedPair(
            chosen=self.chosen[place], rejected=self.rejected[place], references=references
        )

    def with_references(self, references: NDArray[np.float32]) -> "PairRows":
        """Return the pairs with their reference log-probabilities, shape (pairs, 2)."""
        return PairRows(self.chosen, self.rejected, references)

    @property
    def has_label(self) -> NDArray[np.bool_]:
        """See ``EncodedRows.has_label``; true if both answers have a token."""
        return self.chosen.has_label & self.rejected.has_label

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """See ``EncodedRows.truncated``; true if either answer was truncated."""
        return self.chosen.truncated | self.rejected.truncated

    def only(self, places: NDArray[np.bool_]) -> "PairRows":
        """See ``EncodedRows.only``."""
        return PairRows(self.chosen.only(places), self.rejected.only(places))

    def add(self, rows: "PairRows") -> None:
        """See ``EncodedRows.add``."""
        self.chosen.add(rows.chosen)
        self.rejected.add(rows.rejected)

    def content(self) -> Iterator[bytes]:
        """See ``EncodedRows.content``."""
        yield from self.chosen.content()
        yield from self.rejected.content()


@dataclass(frozen=True, kw_only=True)
class PairLayout(TextLayout):
    """Batch layout of pairs: each chosen row is followed by its rejected row."""

    loss: PreferenceLoss

    rows_per_record: ClassVar[int] = 2

    def length(self, row: TokenizedPair) -> int:  # type: ignore[override]
        """See ``Layout.length``; returns the length of the longer row."""
        return max(super().length(row.chosen), super().length(row.rejected))

    def cost(self, row: TokenizedPair) -> int:  # type: ignore[override]
        """See ``Layout.cost``; returns the cost of both rows."""
        return super().cost(row.chosen) + super().cost(row.rejected)

    def longest(self, rows: Sequence[TokenizedPair]) -> int:  # type: ignore[override]
        """See ``Layout.longest``."""
        return max(map(self.length, rows))

    def synthetic(  # type: ignore[override]
        self, model: Any, count: int, longest: int, *, ragged: bool = True
    ) -> Sequence[TokenizedPair]:
        """See ``Layout.synthetic``; the references correspond to uniform predictions."""
        rows = super().synthetic(model, 2 * count, longest, ragged=ragged)
        per_token = -math.log(model.config.get_text_config().vocab_size)
        scores = [per_token * sum(label >= 0 for label in row.labels) for row in rows]
        return [
            TokenizedPair(
                chosen=rows[at],
                rejected=rows[at + 1],
                references=(scores[at], scores[at + 1]),
            )
            for at in range(0, 2 * count, 2)
        ]

    def collate(self, rows: Sequence[TokenizedPair]) -> Batch:  # type: ignore[override]
        """See ``Layout.collate``; b pairs give a batch of 2b rows."""
        batch = super().collate([row for pair in rows for row in (pair.chosen, pair.rejected)])
        known = [pair.references for pair in rows if pair.references is not None]
        return replace(
            batch,
            rows_per_unit=self.rows_per_record,
            pair_loss=self.loss,
            references=torch.tensor(known).flatten() if len(known) == len(rows) else None,
        )


@dataclass(frozen=True, kw_only=True)
class PlainPrompts(TextEncoding):
    """Prompts as plain text, for models without a chat template."""

    def check(self, example: Any) -> None:
        """See ``Encoding.check``; the prompt must be one message of the user."""
        if [message.role for message in example.messages] != ["user"]:
            raise InputError(
                "a prompt of several messages needs a chat template, and this model has none or"
                " task.chat_template=false. Give the prompt as a text.",
                key="task.prompt",
            )


@dataclass(frozen=True, kw_only=True)
class PairEncoding(TextEncoding):
    """Encoding of pairs; each answer is encoded after its prompt like a single answer."""

    single: TextEncoding
    """Encoding of a prompt with one answer, by the chat template or as plain text."""

    def rows(self, examples: Sequence[Example]) -> list[TokenizedPair]:  # type: ignore[override]
        """See ``Encoding.rows``."""
        chosen = self.single.rows(examples)
        rejected = self.single.rows(_with_rejected(examples))
        return [
            TokenizedPair(chosen=one, rejected=other)
            for one, other in zip(chosen, rejected, strict=True)
        ]

    def rows_together(self, examples: Sequence[Example]) -> PairRows:  # type: ignore[override]
        """See ``Encoding.rows_together``."""
        return PairRows(
            self.single.rows_together(examples),
            self.single.rows_together(_with_rejected(examples)),
        )

    def check(self, example: Any) -> None:
        """See ``Encoding.check``; the prompt with either answer must fit into ``max_length``."""
        self.single.check(example)
        (pair,) = self.rows([example])
        if pair.chosen.truncated or pair.rejected.truncated:
            raise InputError(
                "the prompt with one of its answers is longer than task.max_length. Raise it, or"
                " use task.invalid=skip to drop such pairs.",
                key="task.max_length",
            )

    def cuts(self, example: Any) -> bool:
        """See ``Encoding.cuts``."""
        (pair,) = self.rows([example])
        return pair.chosen.truncated or pair.rejected.truncated

    def prompts(
        self, examples: Sequence[Example], *, max_length: int, max_new_tokens: int
    ) -> list[list[int]]:
        """See ``TextEncoding.prompts``."""
        return self.single.prompts(examples, max_length=max_length, max_new_tokens=max_new_tokens)

    def reference(self, example: Example) -> str:
        """See ``TextEncoding.reference``; the reference is the chosen answer."""
        return self.single.reference(example)

    def answer_ids(self, ids: list[int]) -> list[int]:
        """See ``TokenEncoding.answer_ids``."""
        return self.single.answer_ids(ids)

    def answer(self, text: str) -> str:
        """See ``TokenEncoding.answer``."""
        return self.single.answer(text)


def _with_rejected(examples: Sequence[Example]) -> list[Example]:
    """Return the examples with their rejected answers as targets."""
    return [replace(example, target=example.rejected or "") for example in examples]
