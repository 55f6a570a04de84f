"""A logical batch in pieces that fit the device.

Micro-batches are about speed and memory only: the clipped sum over them is the same however the
logical batch is cut, because clipping is per unit and no unit is cut in two.

A piece is as long as its longest row, so rows of few tokens fill a piece of a given number of rows
badly. ``micro_batch_tokens`` bounds rows times length instead, and more short rows go together.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from dpft.data.layout import Batch, Layout
from dpft.parallel.shares import EVERYTHING, Share


def micro_batches(
    examples: Sequence[Any],
    indices: Iterable[int],
    *,
    micro_batch_size: int,
    layout: Layout,
    micro_batch_tokens: int | None = None,
    units: Sequence[Sequence[int]] | None = None,
    share: Share = EVERYTHING,
) -> Iterator[Batch]:
    """Yields the drawn examples, the longest first so that little is padding.

    Args:
        examples: The data set.
        indices: The logical batch, positions in ``units`` or, without them, in ``examples``; may
            be empty, then nothing is yielded. Private: it is never kept.
        micro_batch_size: Most examples in one piece; pieces may hold fewer. At least the size of
            the largest unit.
        layout: How rows lie in a batch, and to what length they are padded.
        micro_batch_tokens: Most rows times tokens of a padded row in one piece, beside the most
            examples; at least those of the largest unit at its longest. None: no bound.
        units: Positions in ``examples`` of each privacy unit's records; a unit without any adds
            nothing. None: each example is a unit of its own.
        share: Of the pieces, dealt by their padded tokens, which are yielded.
    """
    if units is None:
        drawn = [[examples[int(index)]] for index in indices]
    else:
        drawn = [[examples[at] for at in units[int(index)]] for index in indices]
    drawn = [rows for rows in drawn if rows]
    drawn.sort(key=lambda rows: max(map(layout.length, rows)), reverse=True)

    def fits(rows: int, longest: int) -> bool:
        tokens = rows * layout.padded_length(longest)
        return rows <= micro_batch_size and tokens <= (micro_batch_tokens or tokens)

    pieces = list(_pieces(drawn, layout.longest, fits))
    for at in share.of([_tokens(piece, layout) for piece in pieces]):
        piece = pieces[at]
        batch = layout.collate([row for rows in piece for row in rows])
        if units is None:
            yield batch
            continue
        numbers = [number for number, rows in enumerate(piece) for _ in rows]
        yield replace(batch, units=torch.tensor(numbers))


def _tokens(piece: Sequence[list[Any]], layout: Layout) -> int:
    """Returns the tokens of a piece's rows, each padded to the longest."""
    rows = [row for unit in piece for row in unit]
    return len(rows) * layout.padded_length(layout.longest(rows))


def _pieces(
    units: Sequence[list[Any]],
    longest_of: Callable[[Sequence[Any]], int],
    fits: Callable[[int, int], bool],
) -> Iterator[list[list[Any]]]:
    """Yields the units in their order, as many at once as fit by rows and longest row."""
    piece: list[list[Any]] = []
    rows = longest = 0
    for unit in units:
        longer = max(longest, longest_of(unit))
        if piece and not fits(rows + len(unit), longer):
            yield piece
            piece, rows, longer = [], 0, longest_of(unit)
        piece.append(unit)
        rows, longest = rows + len(unit), longer
    if piece:
        yield piece
