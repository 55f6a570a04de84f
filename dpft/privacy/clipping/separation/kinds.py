"""When a kind of call is proved and checked: at its first batch, and at some later ones.

The rule is public and reads numbers of batches alone: 1, 16, 32, 64 and so on, doubling.
"""

from collections import Counter
from collections.abc import Hashable, Iterable

FIRST_REPETITION = 16


class Kinds:
    """The kinds of call that were met, and how many batches of each have been used."""

    def __init__(self) -> None:
        """Starts without any."""
        self._batches: Counter[Hashable] = Counter()
        self._passed: set[Hashable] = set()

    def are_due(self, kind: Hashable) -> bool:
        """Whether the next batch of a kind is to be proved before it is used."""
        number = self._batches[kind] + 1
        doubled = number >= FIRST_REPETITION and number & (number - 1) == 0
        return (number == 1 or doubled) and kind not in self._passed

    def passed(self, kinds: Iterable[Hashable]) -> None:
        """Remembers that the next batch of each kind was proved."""
        self._passed.update(kinds)

    def used(self, kinds: Iterable[Hashable]) -> None:
        """Counts a batch of each kind."""
        for kind in set(kinds):
            self._batches[kind] += 1
            self._passed.discard(kind)

    @property
    def any_used(self) -> bool:
        """Whether any batch was used yet."""
        return bool(self._batches)
