"""A logical batch in pieces that fit the device.

Micro-batches are about speed and memory only: the clipped sum over them is the same however the
logical batch is cut, because clipping is per unit and no unit is cut in two.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from dpft.data.collation import Batch, Layout
from dpft.data.tokenization import TokenizedExample


def micro_batches(
    examples: Sequence[TokenizedExample],
    indices: Iterable[int],
    *,
    micro_batch_size: int,
    layout: Layout,
    units: Sequence[Sequence[int]] | None = None,
) -> Iterator[Batch]:
    """Yields the drawn examples, the longest first so that little is padding.

    Args:
        examples: The data set.
        indices: The logical batch, positions in ``units`` or, without them, in ``examples``; may
            be empty, then nothing is yielded. Private: it is never kept.
        micro_batch_size: Most examples in one piece; pieces may hold fewer. At least the size of
            the largest unit.
        layout: How rows lie in a batch.
        units: Positions in ``examples`` of each privacy unit's records; a unit without any adds
            nothing. None: each example is a unit of its own.
    """
    if units is None:
        drawn = [[examples[int(index)]] for index in indices]
    else:
        drawn = [[examples[at] for at in units[int(index)]] for index in indices]
    drawn = [rows for rows in drawn if rows]
    drawn.sort(key=_longest, reverse=True)
    for piece in _pieces(drawn, micro_batch_size):
        batch = layout.collate([row for rows in piece for row in rows])
        if units is None:
            yield batch
            continue
        numbers = [number for number, rows in enumerate(piece) for _ in rows]
        yield replace(batch, units=torch.tensor(numbers))


def _longest(rows: Sequence[TokenizedExample]) -> int:
    return max(len(row.input_ids) for row in rows)


def _pieces(
    units: Sequence[list[TokenizedExample]], size: int
) -> Iterator[list[list[TokenizedExample]]]:
    """Yields the units in their order, as many at once as have at most ``size`` rows together."""
    piece: list[list[TokenizedExample]] = []
    rows = 0
    for unit in units:
        if piece and rows + len(unit) > size:
            yield piece
            piece, rows = [], 0
        piece.append(unit)
        rows += len(unit)
    if piece:
        yield piece
