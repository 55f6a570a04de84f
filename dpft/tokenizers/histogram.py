"""Word counts over records, with a bound on the contribution of one unit.

Ponomareva et al. 2022, section 3.1: words are what blanks part, taken as they are. Of a unit, which
is a record unless said otherwise, the first N words are counted, each at most m times; the counts
are then scaled down to an L2 norm of at most k. All of that depends on the unit alone. N, m and k
are in `TokenizerConfig`, the section ``tokenizer`` of ``dpft tokenizer``.

Counts are whole multiples of ``RESOLUTION``, rounded towards zero, so that their sums are exact and
a unit moves them by no more than k and m to the last bit.
"""

import math
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from dpft.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


RESOLUTION = 2.0**-16
BELOW_ONE = 1 - 2.0**-40
"""Makes up for the rounding of a product of floats."""


@dataclass(frozen=True, kw_only=True)
class Caps:
    """Bounds on the contribution of a unit."""

    words: int
    """N, its words that are counted."""
    l2: float
    """k, the L2 norm of its counts."""
    linf: float
    """m, the largest of them."""


@dataclass(frozen=True, kw_only=True)
class WordHistogram:
    """Exact counts; private."""

    words: tuple[str, ...]
    """Every word of the records, each once."""
    multiples: "NDArray[np.int64]"
    """The count of each, in multiples of ``RESOLUTION``."""
    num_units: int

    @property
    def counts(self) -> "NDArray[np.float64]":
        """The count of each word."""
        return self.multiples.astype(float) * RESOLUTION


def bounded_counts(words: Iterable[str], caps: Caps) -> dict[str, int]:
    """Returns by how many ``RESOLUTION`` one unit raises the count of each of its words."""
    first = [word for word, _ in zip(words, range(caps.words), strict=False)]
    counts = {word: min(count, caps.linf) for word, count in Counter(first).items()}
    scale = _scale(counts.values(), caps.l2) / RESOLUTION
    return {word: math.floor(count * scale) for word, count in counts.items()}


def _scale(counts: Collection[float], l2: float) -> float:
    """Returns the factor that scales counts to an L2 norm of at most ``l2``."""
    norm = math.sqrt(math.fsum(count * count for count in counts))
    if norm <= l2 * BELOW_ONE:
        return 1.0
    if (
        norm <= l2 / BELOW_ONE
        and sum(Fraction(count) ** 2 for count in counts) <= Fraction(l2) ** 2
    ):
        return 1.0
    return l2 / norm * BELOW_ONE


def count_words(texts: Iterable[tuple[str, str]], caps: Caps, *, by_unit: bool) -> WordHistogram:
    """Returns the histogram of the words of all records.

    Args:
        texts: Of each record its text, and the unit that it is of; read once.
        caps: Of each unit.
        by_unit: Whether the records of one unit count as one; else each is a unit of its own.
    """
    sums: Counter[str] = Counter()
    if not by_unit:
        units = 0
        for text, _ in texts:
            units += 1
            sums.update(bounded_counts(words_of(text), caps))
        return _histogram(sums, units)
    words: dict[str, int] = {}
    kept: dict[str, array[int]] = {}
    for text, unit in texts:
        own = kept.setdefault(unit, array("q"))
        room = caps.words - len(own)
        own.extend(words.setdefault(word, len(words)) for word in words_of(text)[:room])
    names = tuple(words)
    for own in kept.values():
        sums.update(bounded_counts((names[at] for at in own), caps))
    return _histogram(sums, len(kept))


def words_of(text: str) -> Sequence[str]:
    """Returns a text's words, as they are; what no file could hold is none."""
    return text.replace("\x00", " ").encode("utf-8", "ignore").decode("utf-8").split()


def _histogram(sums: Counter[str], units: int) -> WordHistogram:
    import numpy as np

    return WordHistogram(
        words=tuple(sums),
        multiples=np.fromiter(sums.values(), np.int64, len(sums)),
        num_units=units,
    )


UNIGRAM, BPE, CHAR = "unigram", "bpe", "char"
ALGORITHMS = (UNIGRAM, BPE, CHAR)
OF_PIECES = ("vocab_size", "algorithm", "sentinels")
"""Keys that only say what is made of the noisy histogram: they cost nothing."""


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """How words are counted, and what is made of the counts; all of it is public."""

    vocab_size: int
    """Pieces of the vocabulary, of char at most so many; special tokens and sentinels come on
    top."""
    algorithm: str = UNIGRAM
    """unigram, as T5 has it, bpe, or char: each character is a piece."""
    sentinels: int = 100
    """T5's <extra_id_0>, <extra_id_1> and so on, that stand for what is masked."""
    words_per_record: int = 256
    """N: of a record, or unit, no more words are counted."""
    l2_cap: float = 1.0
    """k: a record moves the counts by at most this, in L2 norm; a longer one's are scaled down."""
    linf_cap: float = 1.0
    """m: a record moves one word's count by at most this."""
    noise_std: float | None = None
    """Standard deviation of the noise on each count, where it is given in place of privacy.eps."""

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise InputError(
                f"tokenizer.algorithm must be one of {', '.join(ALGORITHMS)}, got"
                f" {self.algorithm!r}."
            )
        for name, least in (("vocab_size", 1), ("sentinels", 0), ("words_per_record", 1)):
            value = getattr(self, name)
            if value < least:
                raise InputError(f"tokenizer.{name} must be at least {least}, got {value}.")
        for name in ("l2_cap", "linf_cap", "noise_std"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise InputError(f"tokenizer.{name} must be positive and finite, got {value}.")
