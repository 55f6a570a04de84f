"""Inputs to batches of like lengths, filled by tokens: short inputs share what one long one takes.

Texts and scores depend on their batches by rounding only; batches are about speed and memory.
"""

from collections.abc import Iterator, Sequence


def batches_by_tokens(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Yields the inputs in batches that hold as many tokens as ``batch_size`` of the longest.

    Args:
        lengths: Tokens that each input takes, those to be written after it included; at least 1.
        batch_size: How many of the longest input make a batch, at least 1.

    Yields:
        Positions in ``lengths``, the longest first: a batch too large for the device fails at once.
        Padded to its first, a batch has at most ``batch_size * max(lengths)`` tokens.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    room = batch_size * max(lengths, default=0)
    start = 0
    while start < len(order):
        end = start + room // lengths[order[start]]
        yield order[start:end]
        start = end
