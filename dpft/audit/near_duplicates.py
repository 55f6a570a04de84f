"""Near-duplicate records: candidates by MinHash, each verified by its exact Jaccard similarity.

Two records are near duplicates where the sets of their n-grams of ``NGRAM`` words have a Jaccard
similarity of at least ``THRESHOLD``, as in NearDup of Lee et al. 2021 (arXiv 2107.06499, section
4.2), but for its last step, an edit similarity. A record of fewer words is one n-gram, so that it
is a near duplicate of equal ones alone. Words are ``words_of``'s, without their case: a model's
tokens play no part.

datasketch's locality-sensitive hashing finds the candidates, with 25 bands of 5 rows: a pair of
similarity s is found with probability 1 - (1 - s^5)^25, which is 0.99995 at 0.8 and 1 for equal
records, and what it finds is compared exactly. So what is called a near duplicate is one, and one
of 20,000 pairs at the threshold itself may be missed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dpft.audit.base import needed
from dpft.audit.words import words_of

NGRAM = 5
THRESHOLD = 0.8
BANDS, ROWS = 25, 5
METHOD = (
    f"Jaccard similarity of {NGRAM}-grams of words at least {THRESHOLD}; candidates by MinHash"
    " (datasketch), each verified exactly"
)
"""What is called a near duplicate, in words."""
Grams = frozenset[str]


def grams_of(text: str) -> Grams:
    """Returns the n-grams of a text's words; all its words as one where they are fewer.

    >>> sorted(grams_of("The Eagle, a pub in town."))
    ['a pub in town .', 'eagle , a pub in', 'the eagle , a pub', ', a pub in town']
    """
    words = words_of(text.lower())
    last = max(1, len(words) - NGRAM + 1)
    return frozenset(" ".join(words[at : at + NGRAM]) for at in range(last))


def jaccard(one: Grams, other: Grams) -> float:
    """Returns the share of the n-grams of either that both have."""
    common = len(one & other)
    return common / (len(one) + len(other) - common)


class NearDuplicates:
    """Texts, of which those near to another text can be found. Equal ones are held once."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Hashes the texts.

        Raises:
            InputError: datasketch is not installed.
        """
        self._datasketch = needed("datasketch")
        self._index = self._datasketch.MinHashLSH(num_perm=BANDS * ROWS, params=(BANDS, ROWS))
        self._grams = list(dict.fromkeys(map(grams_of, texts)))
        for number, hashed in enumerate(self._hashed(self._grams)):
            self._index.insert(number, hashed)

    def near(self, texts: Sequence[str]) -> list[bool]:
        """Returns for each text whether one of those held is near to it, or equal."""
        grams = [grams_of(text) for text in texts]
        known: dict[Grams, bool] = {}
        distinct = list(dict.fromkeys(grams))
        for one, hashed in zip(distinct, self._hashed(distinct), strict=True):
            known[one] = any(self._is_near(one, at) for at in self._index.query(hashed))
        return [known[one] for one in grams]

    def repeated(self, texts: Sequence[str]) -> list[bool]:
        """Returns for each of the texts held whether another of them is near to it, or equal.

        Args:
            texts: Those that it was made of, in any order.
        """
        grams = [grams_of(text) for text in texts]
        counts: dict[Grams, int] = {}
        for one in grams:
            counts[one] = counts.get(one, 0) + 1
        known = {one: True for one, count in counts.items() if count > 1}
        single = [one for one, count in counts.items() if count == 1]
        for one, hashed in zip(single, self._hashed(single), strict=True):
            found = self._index.query(hashed)
            known[one] = any(self._grams[at] != one and self._is_near(one, at) for at in found)
        return [known[one] for one in grams]

    def _is_near(self, one: Grams, at: int) -> bool:
        return jaccard(one, self._grams[at]) >= THRESHOLD

    def _hashed(self, grams: Sequence[Grams]) -> Iterable[Any]:
        """Yields the MinHash of each set of n-grams."""
        encoded = ([gram.encode() for gram in one] for one in grams)
        hashed: Iterable[Any] = self._datasketch.MinHash.generator(encoded, num_perm=BANDS * ROWS)
        return hashed


@dataclass(frozen=True, kw_only=True)
class PromptSets:
    """Places of records by whether another is near, as Ponomareva et al. 2022 prompt a model."""

    train_dup: tuple[int, ...]
    """Training records with a near duplicate among the training records."""
    train_unique: tuple[int, ...]
    """Training records without."""
    valid_in_train: tuple[int, ...]
    """Records not trained on with a near duplicate among the training records."""
    valid_unique: tuple[int, ...]
    """Records not trained on without."""


def prompt_sets(training: Sequence[str], unseen: Sequence[str]) -> PromptSets:
    """Returns the four sets of prompts, of every record of both.

    Args:
        training: Texts of the records trained on.
        unseen: Texts of others; they may be none.

    Raises:
        InputError: datasketch is not installed.
    """
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
