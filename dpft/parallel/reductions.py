"""One sum of all ranks' gradients, each stretch of it finished by one rank and given to all.

Each stretch of a gradient has an owner. The others send it their values of it; the owner adds them
up in float64, in the order of ranks, finishes them (adds the noise), rounds once, and sends every
rank the outcome. So a sum depends on no network's order of additions, nothing is rounded that a
single process would not round, and ranks cannot come to differ. On the way are float32 numbers, as
many as an all-reduce sends.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpft.parallel.ranks import Ranks

TURN = 2**22
"""Numbers that a rank finishes between two exchanges, or the one stretch that has more."""

STRETCH = 2**20
"""Numbers that a large gradient is cut into, so that each rank owns about as many."""

Finish = Callable[[Sequence[tuple[int, Tensor]]], None]
"""Changes stretches of the sum in place, each given its place among all of them."""


@dataclass(frozen=True)
class Piece:
    """A stretch of one block of a parameter's sum.

    Attributes:
        place: Of the parameter among all of the model's.
        block: Which block of the flattened parameter.
        offset: Where in the block the stretch begins.
        block_length: How many numbers the block has.
    """

    place: int
    block: int
    offset: int
    block_length: int


FinishPieces = Callable[[Sequence[tuple[Piece, Tensor]]], None]
"""Changes pieces of sums in place, float64 where several ranks' were added up."""


class StepSums(Protocol):
    """Where a step's clipped sums are, this rank's own, and how they become all ranks'."""

    def finish(self, block: int, finish: FinishPieces) -> None:
        """Adds up all ranks' sums, lets each piece be finished once, and leaves it in ``grad``.

        Args:
            block: Numbers of a flattened parameter that no piece reaches across.
            finish: Given each piece once, by one rank; several at a time.
        """


def pieces_between(
    place: int, start: int, end: int, *, total: int, block: int
) -> Iterator[tuple[int, int, Piece]]:
    """Yields where each piece of a stretch of a flattened parameter begins and ends, and the piece.

    >>> [(a, b, p.block, p.offset) for a, b, p in pieces_between(0, 3, 9, total=10, block=4)]
    [(3, 4, 0, 3), (4, 8, 1, 0), (8, 9, 2, 0)]
    """
    while start < end:
        number = start // block
        last = min(end, (number + 1) * block)
        length = min(block, total - number * block)
        yield start, last, Piece(place, number, start - number * block, length)
        start = last


def finish_sums(
    stretches: Sequence[Tensor],
    finish: Finish,
    ranks: Ranks,
    owned: Sequence[list[int]] | None = None,
) -> None:
    """Makes each stretch the finished sum of all ranks' stretches, the same bits on each rank.

    Args:
        stretches: Of this rank's gradients, 1-D, of one dtype; to be written to. Every rank has the
            same shapes in the same order.
        finish: Given a stretch by its owner alone, its sum in float64; alone, the stretch itself.
        ranks: Whose sums are added.
        owned: Places of the stretches that each rank owns and, of all ranks, gets; None: all ranks
            get all of them.
    """
    if ranks.size == 1:
        lengths = [len(stretch) for stretch in stretches]
        for (places,) in _turns(lengths, [list(range(len(stretches)))]):
            finish([(place, stretches[place]) for place in places])
        return
    if len({stretch.dtype for stretch in stretches}) > 1:
        raise ValueError("stretches must have one dtype, got several: those sent would be rounded.")
    is_shared = owned is None
    if owned is None:
        owned = owned_places([len(stretch) for stretch in stretches], ranks.size)
    for turn in _turns([len(stretch) for stretch in stretches], owned):
        _finish_turn(stretches, turn, finish, ranks, shared=is_shared)


def owned_places(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Returns the places of the stretches that each rank finishes, about as many numbers each.

    >>> owned_places([4, 1, 3, 2], 2)
    [[0, 1], [2, 3]]
    """
    owned: list[list[int]] = [[] for _ in range(size)]
    before, total = 0, max(1, sum(lengths))
    for place, length in enumerate(lengths):
        owned[min(size - 1, (2 * before + length) * size // (2 * total))].append(place)
        before += length
    return owned


def turn_lengths(lengths: Sequence[int], owned: Sequence[list[int]]) -> list[int]:
    """Returns how many numbers each rank is sent by each other one, exchange by exchange.

    >>> turn_lengths([4, 1, 3, 2], [[0, 1], [2, 3]])
    [5]
    """
    return [
        max(sum(lengths[place] for place in places) for places in turn)
        for turn in _turns(lengths, owned)
    ]


def _turns(lengths: Sequence[int], owned: Sequence[list[int]]) -> Iterator[list[list[int]]]:
    """Yields what each rank finishes in one exchange: places, of about ``TURN`` numbers."""
    waiting = [list(reversed(places)) for places in owned]
    while any(waiting):
        turn = []
        for places in waiting:
            mine: list[int] = []
            numbers = 0
            while places and (not mine or numbers + lengths[places[-1]] <= TURN):
                mine.append(places.pop())
                numbers += lengths[mine[-1]]
            turn.append(mine)
        yield turn


def _finish_turn(
    stretches: Sequence[Tensor],
    turn: Sequence[list[int]],
    finish: Finish,
    ranks: Ranks,
    *,
    shared: bool,
) -> None:
    """Sends each owner its stretches, finishes this rank's, and where shared gives all theirs."""
    longest = max(sum(len(stretches[place]) for place in places) for places in turn)
    if not longest:
        return
    rows = stretches[0].new_zeros(ranks.size, longest)
    for row, places in zip(rows, turn, strict=True):
        for place, part in _parts(row, stretches, places):
            part.copy_(stretches[place])
    total = torch.zeros(longest, dtype=torch.float64, device=rows.device)
    for row in ranks.all_to_all(rows):
        total += row
    own = list(_parts(total, stretches, turn[ranks.rank]))
    finish(own)
    for place, part in own:
        stretches[place].copy_(part)
    if not shared:
        return
    outcomes = ranks.all_gather(total.to(rows.dtype))
    for row, places in zip(outcomes, turn, strict=True):
        for place, part in _parts(row, stretches, places):
            stretches[place].copy_(part)


def _parts(
    row: Tensor, stretches: Sequence[Tensor], places: Sequence[int]
) -> Iterator[tuple[int, Tensor]]:
    """Yields each place, and the part of a row that is its stretch's, one after the other."""
    start = 0
    for place in places:
        end = start + len(stretches[place])
        yield place, row[start:end]
        start = end
