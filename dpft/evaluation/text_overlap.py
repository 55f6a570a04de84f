"""Detection of near-duplicate texts.

Two texts are near duplicates if their sets of n-grams of ``NGRAM`` words have a Jaccard similarity
of at least ``THRESHOLD``. This is NearDup of Lee et al. 2021 (arXiv 2107.06499, section 4.2)
without the last step, a filter by edit similarity. A text with fewer words is a single n-gram. The
locality-sensitive hashing of datasketch finds candidates with 25 bands of 5 rows. It finds a pair
of similarity s with probability 1 - (1 - s^5)^25, which is 0.99995 for s = 0.8. Each candidate is
compared exactly. There are therefore no false positives, and about one of 20,000 pairs at the
threshold is missed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import regex

from dpft.errors import InputError
from dpft.evaluation.words import spaced
from dpft.tasks.base import Example

_WORD = regex.compile(r"\w+|[^\w\s]")


def words_of(text: str) -> list[str]:
    """Return the words of a text and its punctuation marks, each mark as a separate word.

    Each character of a script without spaces is also a word.

    >>> words_of("The Eagle, a pub.")
    ['The', 'Eagle', ',', 'a', 'pub', '.']
    """
    words: list[str] = _WORD.findall(spaced(text))
    return words


def whole_text(record: Example) -> str:
    """Return the whole text of a record: prompt and target."""
    return record.prompt + record.target


NGRAM = 5
THRESHOLD = 0.8
BANDS, ROWS = 25, 5
METHOD = (
    f"Jaccard similarity of {NGRAM}-grams of words at least {THRESHOLD}; candidates by MinHash"
    " (datasketch), each verified exactly"
)
"""Description of how near duplicates are found, for reports."""
Grams = frozenset[str]


def grams_of(text: str) -> Grams:
    """Return the n-grams of a text's words; a text with fewer words is a single n-gram.

    >>> sorted(grams_of("The Eagle, a pub in town."))
    [', a pub in town', 'a pub in town .', 'eagle , a pub in', 'the eagle , a pub']
    """
    words = words_of(text.lower())
    last = max(1, len(words) - NGRAM + 1)
    return frozenset(" ".join(words[at : at + NGRAM]) for at in range(last))


def jaccard(one: Grams, other: Grams) -> float:
    """Return the share of common n-grams among the n-grams of both sets."""
    common = len(one & other)
    return common / (len(one) + len(other) - common)


class NearDuplicates:
    """An index of texts that finds near duplicates. Equal texts are stored once."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Hash the texts."""
        try:
            import datasketch
        except ImportError:
            raise InputError(
                "Finding near duplicates needs the package datasketch, which is not installed.",
                key="datasketch",
                hint="pip install 'dpft[audit]'",
            ) from None
        self._datasketch = datasketch
        self._index = self._datasketch.MinHashLSH(num_perm=BANDS * ROWS, params=(BANDS, ROWS))
        self._grams = list(dict.fromkeys(map(grams_of, texts)))
        for number, hashed in enumerate(self._hashed(self._grams)):
            self._index.insert(number, hashed)

    def near(self, texts: Sequence[str]) -> list[bool]:
        """Return, for each text, whether the index contains an equal text or a near duplicate."""
        grams = [grams_of(text) for text in texts]
        is_near: dict[Grams, bool] = {}
        distinct = list(dict.fromkeys(grams))
        for one, hashed in zip(distinct, self._hashed(distinct), strict=True):
            is_near[one] = any(self._is_near(one, at) for at in self._index.query(hashed))
        return [is_near[one] for one in grams]

    def repeated(self, texts: Sequence[str]) -> list[bool]:
        """Return, for each text of the index, whether another text is equal or a near duplicate."""
        grams = [grams_of(text) for text in texts]
        counts: dict[Grams, int] = {}
        for one in grams:
            counts[one] = counts.get(one, 0) + 1
        is_repeated = {one: True for one, count in counts.items() if count > 1}
        single = [one for one, count in counts.items() if count == 1]
        for one, hashed in zip(single, self._hashed(single), strict=True):
            candidates = self._index.query(hashed)
            is_repeated[one] = any(
                self._grams[at] != one and self._is_near(one, at) for at in candidates
            )
        return [is_repeated[one] for one in grams]

    def _is_near(self, one: Grams, at: int) -> bool:
        return jaccard(one, self._grams[at]) >= THRESHOLD

    def _hashed(self, grams: Sequence[Grams]) -> Iterable[Any]:
        """Yield the MinHash of each set of n-grams."""
        encoded = ([gram.encode() for gram in one] for one in grams)
        hashed: Iterable[Any] = self._datasketch.MinHash.generator(encoded, num_perm=BANDS * ROWS)
        return hashed


@dataclass(frozen=True, kw_only=True)
class PromptSets:
    """Positions of records with and without near duplicates, as in Ponomareva et al. 2022."""

    train_dup: tuple[int, ...]
    """Training records with a near duplicate among the training records."""
    train_unique: tuple[int, ...]
    """Training records without such a near duplicate."""
    valid_in_train: tuple[int, ...]
    """Records not trained on, with a near duplicate among the training records."""
    valid_unique: tuple[int, ...]
    """Records not trained on, without such a near duplicate."""


def prompt_sets(training: Sequence[str], unseen: Sequence[str]) -> PromptSets:
    """Return the four sets of prompts, which together contain every record."""
    held = NearDuplicates(training)
    repeated, in_train = held.repeated(training), held.near(unseen)
    return PromptSets(
        train_dup=_places(repeated, True),
        train_unique=_places(repeated, False),
        valid_in_train=_places(in_train, True),
        valid_unique=_places(in_train, False),
    )


def _places(flags: Sequence[bool], wanted: bool) -> tuple[int, ...]:
    return tuple(at for at, flag in enumerate(flags) if flag == wanted)
