"""Ranks that are threads of one process: what passes between them is handed over in lists."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch import Tensor

from dpft.parallel.ranks import Ranks

SECONDS = 20
"""After which ranks that wait for each other are taken for hung."""


class ThreadRanks(Ranks):
    """A rank of several in one process."""

    def __init__(self, rank: int, size: int, meeting: threading.Barrier, given: list[Any]) -> None:
        super().__init__(rank, size)
        self._meeting, self._given = meeting, given

    def _everyones(self, value: Any) -> list[Any]:
        self._given[self.rank] = value
        self._meeting.wait(SECONDS)
        heard = list(self._given)
        self._meeting.wait(SECONDS)
        return heard

    def all_gather(self, values: Tensor) -> list[Tensor]:
        return [each.clone() for each in self._everyones(values.clone())]

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            tensor.detach().copy_(self._everyones(tensor.detach().clone())[0])

    def any(self, *flags: bool) -> tuple[bool, ...]:
        return tuple(map(any, zip(*self._everyones(flags), strict=True)))


def together(size: int, work: Callable[[Ranks], Any]) -> list[Any]:
    """Return what each rank's work returns, or the exception that it ends with."""
    meeting, given = threading.Barrier(size), [None] * size

    def outcome(rank: int) -> Any:
        try:
            return work(ThreadRanks(rank, size, meeting, given))
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(outcome, range(size)))
