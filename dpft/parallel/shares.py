"""Which rank does which part of a work that is cut in pieces."""

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpft.parallel.ranks import Ranks


@dataclass(frozen=True)
class Share:
    """One rank's share of pieces that every rank knows.

    >>> [Share(rank, 2).of([5, 3, 3, 1]) for rank in (0, 1)]
    [[0, 3], [1, 2]]
    """

    rank: int = 0
    size: int = 1

    def of(self, weights: Sequence[int]) -> list[int]:
        """Returns the places of this rank's pieces, ascending.

        The heaviest are dealt first, each to the rank that has least: shares differ by no more
        than the heaviest piece, and every rank comes to the same shares by itself.

        Args:
            weights: What each piece is to do, at least 0.
        """
        if self.size == 1:
            return list(range(len(weights)))
        loads = [(0, rank) for rank in range(self.size)]
        mine = []
        for place in sorted(range(len(weights)), key=lambda at: (-weights[at], at)):
            load, rank = heapq.heappop(loads)
            heapq.heappush(loads, (load + weights[place], rank))
            if rank == self.rank:
                mine.append(place)
        return sorted(mine)


EVERYTHING = Share()
"""Of a run of one process."""


def in_turn(count: int, ranks: Ranks) -> range:
    """Returns the places, of so many, that are this rank's where they are dealt one by one."""
    return range(ranks.rank, count, ranks.size)


def put_together(answers: Sequence[Any], ranks: Ranks) -> list[Any]:
    """Returns what all ranks answered to what ``in_turn`` dealt them, in order, on each of them.

    Args:
        answers: This rank's, ready for JSON, one for each of its places.
        ranks: Who answers.
    """
    if ranks.size == 1:
        return list(answers)
    heard = [json.loads(each) for each in ranks.everyones(json.dumps(list(answers)).encode())]
    found: list[Any] = [None] * sum(map(len, heard))
    for rank, each in enumerate(heard):
        found[rank :: ranks.size] = each
    return found
