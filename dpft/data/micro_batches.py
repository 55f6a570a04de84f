"""A logical batch in pieces that fit the device.

Micro-batches are about speed and memory only: the clipped sum over them is the same however the
logical batch is cut, because clipping is per example.
"""

from collections.abc import Iterable, Iterator, Sequence

from dpft.data.collation import Batch, Layout
from dpft.data.tokenization import TokenizedExample


def micro_batches(
    examples: Sequence[TokenizedExample],
    indices: Iterable[int],
    *,
    micro_batch_size: int,
    layout: Layout,
) -> Iterator[Batch]:
    """Yields the examples at the indices, sorted by length so that little is padding.

    Args:
        examples: The data set.
        indices: The logical batch, positions in ``examples``; may be empty, then nothing is
            yielded. Private: it is never kept.
        micro_batch_size: Most examples in one piece; the last may hold fewer.
        layout: How rows lie in a batch.
    """
    drawn = [examples[int(index)] for index in indices]
    drawn.sort(key=lambda example: len(example.input_ids), reverse=True)
    for start in range(0, len(drawn), micro_batch_size):
        yield layout.collate(drawn[start : start + micro_batch_size])
