"""Rows to tensors: right-padded batches with a position id for every token.

Position ids are always expanded to (b, t). A model left to make its own broadcasts one row of them
over the batch (GPT-2, BERT), and then its position embedding has no per-example gradient.

Shapes: b examples, t tokens of the longest example, k label words or outputs of a classifier.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dpft.data.layout import Batch, Layout
from dpft.data.tokenization import TokenizedExample
from dpft.kinds import (
    CLASSES,
    CLASSIFIER,
    IGNORED_LABEL,
    LABEL_WORDS,
    MASKED,
    SCORE,
    SEQ2SEQ,
    TEXT,
)


@dataclass(frozen=True, kw_only=True)
class TextLayout(Layout):
    """How rows of tokens lie in a batch; public configuration."""

    pad_token_id: int = 0
    """Written into padding; attention never sees it."""
    takes_position_ids: bool = True
    """Whether the model is given position ids; some count them by themselves, row by row."""
    takes_token_types: bool = True
    """Whether the model is told which sentence a token is of, where the rows say so."""
    decoder_start_token_id: int = 0
    """For seq2seq models: what their answer begins with."""
    words: tuple[int, ...] = ()
    """Token ids of the label words."""
    max_length: int | None = None
    """Tokens to which a batch is padded at most, as no row is longer; None: no bound."""

    def length(self, row: TokenizedExample) -> int:
        """See ``Layout.length``."""
        return len(row.input_ids)

    def cost(self, row: TokenizedExample) -> int:
        """See ``Layout.cost``: a decoder reads its target apart."""
        apart = len(row.labels) if (self.kind, self.answer) == (SEQ2SEQ, TEXT) else 0
        return len(row.input_ids) + apart

    def longest(self, rows: Sequence[TokenizedExample]) -> int:
        """Returns the tokens of the longest row, the longer of what is read and what is written."""
        writes_apart = self.kind == SEQ2SEQ and self.answer == TEXT
        written = [len(row.labels) for row in rows] if writes_apart else []
        return max([len(row.input_ids) for row in rows] + written)

    def padded_length(self, longest: int) -> int:
        """Returns the length of a batch whose longest row has ``longest`` tokens."""
        multiple = -(-longest // self.pad_to_multiple_of) * self.pad_to_multiple_of
        if self.max_length is not None:
            multiple = min(multiple, self.max_length)
        return max(longest, multiple)

    def for_training(self, *, multiple: int, longest: int) -> "TextLayout":
        """See ``Layout.for_training``."""
        return replace(self, pad_to_multiple_of=multiple, max_length=longest)

    def synthetic(
        self, model: Any, count: int, longest: int, *, ragged: bool = True
    ) -> Sequence[TokenizedExample]:
        """See ``Layout.synthetic``: random tokens of the model's vocabulary, and random labels."""
        size = model.config.get_text_config().vocab_size
        return synthetic_rows(self, count, longest, vocab_size=size, ragged=ragged)

    def collate(self, rows: Sequence[TokenizedExample]) -> Batch:
        """Returns the rows as one batch, padded on the right to ``padded_length``.

        Args:
            rows: At least one row.
        """
        inputs = self._inputs(rows)
        if self.answer == TEXT:
            labels, decoder = self._text(rows, len(inputs["input_ids"][0]))
            return Batch(inputs=inputs | decoder, labels=labels, kind=self.kind)
        batch = Batch(
            inputs=inputs,
            labels=torch.tensor([row.labels for row in rows], dtype=torch.float32),
            kind=self.kind,
            answer=self.answer,
        )
        return batch if self.kind == CLASSIFIER else self._with_words(batch, rows)

    def _inputs(self, rows: Sequence[TokenizedExample]) -> dict[str, Tensor]:
        lengths = [len(row.input_ids) for row in rows]
        longest = self.padded_length(max(lengths))
        inputs = {
            "input_ids": _padded([row.input_ids for row in rows], longest, self.pad_token_id),
            "attention_mask": _padded([[1] * length for length in lengths], longest, 0),
        }
        if self.takes_position_ids:
            inputs["position_ids"] = torch.arange(longest).repeat(len(rows), 1)
        types = [row.token_type_ids for row in rows if row.token_type_ids is not None]
        if types and self.takes_token_types:
            inputs["token_type_ids"] = _padded(types, longest, 0)
        return inputs

    def _text(
        self, rows: Sequence[TokenizedExample], longest: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the labels of texts, and what a decoder reads: the labels, one step late."""
        targets = [[int(label) for label in row.labels] for row in rows]
        if self.kind != SEQ2SEQ:
            return _padded(targets, longest, IGNORED_LABEL), {}
        longest = self.padded_length(max(len(target) for target in targets))
        shifted = [[self.decoder_start_token_id, *target[:-1]] for target in targets]
        decoder = {"decoder_input_ids": _padded(shifted, longest, self.pad_token_id)}
        return _padded(targets, longest, IGNORED_LABEL), decoder

    def _with_words(self, batch: Batch, rows: Sequence[TokenizedExample]) -> Batch:
        """Returns the batch with where, and among which words, the answer is."""
        inputs = dict(batch.inputs)
        positions = torch.tensor([row.answer or 0 for row in rows])
        if self.kind == SEQ2SEQ:
            inputs["decoder_input_ids"] = torch.full((len(rows), 1), self.decoder_start_token_id)
            positions = torch.zeros_like(positions)
        return replace(batch, inputs=inputs, positions=positions, words=torch.tensor(self.words))


def _padded(rows: Sequence[list[int]], length: int, value: int) -> Tensor:
    """Returns the rows as one int64 tensor, shape (b, length), filled up with the value."""
    return torch.tensor([row + [value] * (length - len(row)) for row in rows])


def synthetic_rows(
    layout: TextLayout, count: int, longest: int, *, vocab_size: int, ragged: bool = True
) -> list[TokenizedExample]:
    """Returns ``count`` random rows of ``longest`` tokens, the same ones every time.

    A model is tried on them before any record is touched: they need no tokenizer, and hold nothing
    of the data but the layout.

    Args:
        layout: Says what a row's labels are.
        count: How many.
        longest: Tokens of the longest.
        vocab_size: Tokens are below it.
        ragged: Whether the others are shorter.
    """
    generator = torch.Generator().manual_seed(0)
    rows = []
    for number in range(count):
        shortened = number * longest // (count + 1) if ragged else 0
        length = max(2, longest - shortened)
        ids = torch.randint(0, vocab_size, (length,), generator=generator).tolist()
        ids = [token if token != layout.pad_token_id else (token + 1) % vocab_size for token in ids]
        rows.append(_with_token_types(layout, _row(layout, ids, generator)))
    return rows


def _with_token_types(layout: TextLayout, row: TokenizedExample) -> TokenizedExample:
    """Returns a row of two sentences, where the model is told them apart."""
    if layout.kind != CLASSIFIER or not layout.takes_token_types:
        return row
    first = len(row.input_ids) // 2
    return replace(row, token_type_ids=[0] * first + [1] * (len(row.input_ids) - first))


def _row(layout: TextLayout, ids: list[int], generator: torch.Generator) -> TokenizedExample:
    half = len(ids) // 2
    if layout.answer in (LABEL_WORDS, CLASSES):
        count = len(layout.words) if layout.answer == LABEL_WORDS else layout.outputs
        labels = torch.rand(count, generator=generator).softmax(0).tolist()
        answer = half if layout.kind == MASKED else len(ids) - 1
        return TokenizedExample(input_ids=ids, labels=labels, answer=answer)
    if layout.answer == SCORE:
        labels = torch.rand(1, generator=generator).tolist()
        return TokenizedExample(input_ids=ids, labels=labels)
    if layout.kind == SEQ2SEQ:
        return TokenizedExample(input_ids=ids, labels=ids[half:])
    return TokenizedExample(input_ids=ids, labels=[IGNORED_LABEL] * half + ids[half:])
