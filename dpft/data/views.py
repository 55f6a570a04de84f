"""What a model reads of a record, drawn anew each time the record is: spans or tokens are hidden.

A record's row holds its text's own tokens; a view of it is what is collated. It depends on the
record, on secret bits of the step and on nothing else, so that what one record becomes does not
depend on the others of its batch (docs/design.md, rule 3).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from dpft.data.tokenization import TokenizedExample
from dpft.kinds import IGNORED_LABEL

WORD_BYTES = 8
Bits = Callable[[int], bytes]
"""Returns as many random bytes as it is asked for, once for each view."""


class ViewBits(Protocol):
    """Where the bits of views come from."""

    def bits(self, step: int, record: int, size: int) -> bytes:
        """Returns random bytes for the view of a record at a step, both counted from 0."""


class View(ABC):
    """Makes what a model reads of a row."""

    @abstractmethod
    def __call__(self, row: Any, bits: Bits) -> Any:
        """Returns the row as it is read this time."""


class ViewedRows(Sequence[Any]):
    """Rows as they are read at one step."""

    def __init__(self, rows: Sequence[Any], view: View, source: ViewBits, step: int) -> None:
        """Views ``rows`` by what ``source`` draws for ``step``."""
        self._rows, self._view, self._source, self._step = rows, view, source, step

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> Any: ...

    @overload
    def __getitem__(self, at: slice) -> list[Any]: ...

    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        return self._view(self._rows[at], lambda size: self._source.bits(self._step, at, size))


@dataclass(frozen=True, kw_only=True)
class SpanCorruption(View):
    """Spans of a text are hidden, and learned: T5's objective (Raffel et al. 2020, section 3.3.4).

    Each hidden span is a sentinel in what is read; the target is each sentinel with its span. Both
    end with the end-of-text token. Spans and what is between them are cut at places drawn uniformly
    among all there are, the first of them unhidden and the last one hidden, as T5 draws them.
    """

    noise_density: float
    """Share of the tokens that are hidden."""
    mean_span: float
    """Tokens of a hidden span on average."""
    sentinels: tuple[int, ...]
    """Token ids, in the order in which they stand in a text."""
    end: int
    """The end-of-text token."""

    def __call__(self, row: TokenizedExample, bits: Bits) -> TokenizedExample:
        """See ``View.__call__``."""
        ids = row.input_ids
        spans = hidden_spans(
            len(ids), density=self.noise_density, mean_span=self.mean_span, bits=bits
        )
        read: list[int] = []
        target: list[int] = []
        at = 0
        for sentinel, (start, stop) in zip(self.sentinels, spans, strict=False):
            read += [*ids[at:start], sentinel]
            target += [sentinel, *ids[start:stop]]
            at = stop
        return TokenizedExample(
            input_ids=[*read, self.end], labels=[*target, self.end], truncated=row.truncated
        )


@dataclass(frozen=True, kw_only=True)
class MaskedTokens(View):
    """Tokens of a text are hidden, and learned: BERT's objective (Devlin et al. 2019, section 3.1).

    Of the chosen tokens eight in ten are masked, one is another token at random, one stays.
    """

    noise_density: float
    """Probability with which a token is chosen; one is, at least."""
    mask: int
    special: frozenset[int]
    """Tokens that are never chosen."""
    vocab_size: int

    def __call__(self, row: TokenizedExample, bits: Bits) -> TokenizedExample:
        """See ``View.__call__``."""
        ids = np.array(row.input_ids)
        words = np.frombuffer(bits(3 * WORD_BYTES * len(ids)), np.uint64).reshape(3, len(ids))
        chance, kind = (words[:2] >> np.uint64(11)) * 2.0**-53
        free = np.array([token not in self.special for token in row.input_ids])
        chance = np.where(free, chance, 2.0)
        chosen = (chance < self.noise_density) | (free & (chance == chance.min()))
        others = (words[2] % np.uint64(self.vocab_size)).astype(np.int64)
        read = np.where(kind < 0.8, self.mask, np.where(kind < 0.9, others, ids))
        return TokenizedExample(
            input_ids=np.where(chosen, read, ids).tolist(),
            labels=np.where(chosen, ids, IGNORED_LABEL).tolist(),
            truncated=row.truncated,
        )


def hidden_spans(
    length: int, *, density: float, mean_span: float, bits: Bits
) -> list[tuple[int, int]]:
    """Returns where T5's hidden spans of a text begin and end, in order; the last one ends it.

    Args:
        length: Tokens of the text.
        density: Share of them that are hidden.
        mean_span: Tokens of a span on average.
        bits: What the places are drawn by.
    """
    hidden, count = noise_of(length, density=density, mean_span=mean_span)
    words = np.frombuffer(bits(WORD_BYTES * length), np.uint64)
    kept = _segments(length - hidden, count, words[hidden:])
    gone = _segments(hidden, count, words[:hidden])
    stops = np.cumsum(np.add(kept, gone)).tolist()
    return [(stop - goes, stop) for stop, goes in zip(stops, gone, strict=True)]


def noise_of(length: int, *, density: float, mean_span: float) -> tuple[int, int]:
    """Returns how many tokens of a text are hidden, and in how many spans.

    >>> noise_of(568, density=0.15, mean_span=3.0)
    (85, 28)
    """
    if length < 2:
        return length, 1
    hidden = min(max(round(length * density), 1), length - 1)
    spans = max(round(hidden / mean_span), 1)
    return hidden, min(spans, length - hidden)


def corrupted_lengths(length: int, *, density: float, mean_span: float) -> tuple[int, int]:
    """Returns the tokens of what is read and of the target, of a text of ``length`` tokens.

    >>> corrupted_lengths(568, density=0.15, mean_span=3.0)
    (512, 114)
    """
    hidden, spans = noise_of(length, density=density, mean_span=mean_span)
    return length - hidden + spans + 1, hidden + spans + 1


def raw_length(longest: int, *, density: float, mean_span: float) -> int:
    """Returns the longest text of which what is read, and the target, have ``longest`` tokens.

    >>> raw_length(512, density=0.15, mean_span=3.0)
    568
    """
    length = 1
    while max(corrupted_lengths(length + 1, density=density, mean_span=mean_span)) <= longest:
        length += 1
    return length


def _segments(items: int, count: int, words: NDArray[np.uint64]) -> list[int]:
    """Returns the lengths of ``count`` stretches, none empty, that ``items`` are cut into.

    Every way of cutting is as likely as any other.
    """
    if items == 0:
        return [0] * count
    cuts = np.sort(np.argsort(words[: items - 1], kind="stable")[: count - 1]) + 1
    lengths: list[int] = np.diff(np.concatenate(([0], cuts, [items]))).tolist()
    return lengths
