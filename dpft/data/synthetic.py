"""Rows of random tokens, to try a model on before any record is touched.

They need no tokenizer and hold nothing of the data: only the vocabulary's size and the layout.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from dpft.data.tokenization import TokenizedExample
from dpft.kinds import CLASSES, CLASSIFIER, IGNORED_LABEL, LABEL_WORDS, MASKED, SCORE, SEQ2SEQ

if TYPE_CHECKING:
    from dpft.data.collation import TextLayout


def synthetic_rows(
    layout: "TextLayout", count: int, longest: int, *, vocab_size: int, ragged: bool = True
) -> list[TokenizedExample]:
    """Returns ``count`` random rows of ``longest`` tokens, the same ones every time.

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


def _with_token_types(layout: "TextLayout", row: TokenizedExample) -> TokenizedExample:
    """Returns a row of two sentences, where the model is told them apart."""
    if layout.kind != CLASSIFIER or not layout.takes_token_types:
        return row
    first = len(row.input_ids) // 2
    return replace(row, token_type_ids=[0] * first + [1] * (len(row.input_ids) - first))


def _row(layout: "TextLayout", ids: list[int], generator: torch.Generator) -> TokenizedExample:
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
