"""Overlap of texts: near duplicates, longest common runs of words, leaked records.

- **Near duplicates** (`NearDuplicates`): two texts whose sets of n-grams of ``NGRAM`` words have a
  Jaccard similarity of at least ``THRESHOLD``, as in NearDup of Lee et al. 2021 (arXiv 2107.06499,
  section 4.2), without its last step, an edit similarity. Fewer words are one n-gram. datasketch's
  locality-sensitive hashing finds candidates with 25 bands of 5 rows (a pair of similarity s with
  probability 1 - (1 - s^5)^25: 0.99995 at 0.8), and each is compared exactly: no false positives,
  and one of 20,000 pairs at the threshold may be missed.
- **Longest runs** (`longest_runs`): exact, for thousands of texts at once.
- **Leakage** (`leakage_of`): both, of synthetic texts against training records and, as the control,
  against records that were not trained on: a text may hold a stretch of a record because everybody
  writes so. Under (epsilon, delta)-DP the share of training records of which anything is found is,
  in expectation, at most e^epsilon times the share of other records plus delta. Which canaries
  stand in the text is private, as they and their coins are.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import regex
from numpy.typing import NDArray

from dpft.audit.base import import_extra
from dpft.evaluation.words import spaced
from dpft.files import CANARIES
from dpft.records import audits
from dpft.records.audits import CanariesInTexts, KeptCanaries
from dpft.records.form import read_record
from dpft.tasks.base import Example

_WORD = regex.compile(r"\w+|[^\w\s]")


def words_of(text: str) -> list[str]:
    """Returns the words of a text and its marks, each mark a word of its own.

    Each character of a script that is written without blanks is a word, too.

    >>> words_of("The Eagle, a pub.")
    ['The', 'Eagle', ',', 'a', 'pub', '.']
    """
    words: list[str] = _WORD.findall(spaced(text))
    return words


def whole_text(record: Example) -> str:
    """Returns a record as the model reads it: prompt and target."""
    return record.prompt + record.target


def written_text(record: Example, *, prompted: bool) -> str:
    """Returns the part of a record that a model would write."""
    return whole_text(record) if record.learns_prompt and not prompted else record.target


NGRAM = 5
THRESHOLD = 0.8
BANDS, ROWS = 25, 5
METHOD = (
    f"Jaccard similarity of {NGRAM}-grams of words at least {THRESHOLD}; candidates by MinHash"
    " (datasketch), each verified exactly"
)
"""The definition of a near duplicate, in words."""
Grams = frozenset[str]


def grams_of(text: str) -> Grams:
    """Returns the n-grams of a text's words; all its words as one where they are fewer.

    >>> sorted(grams_of("The Eagle, a pub in town."))
    [', a pub in town', 'a pub in town .', 'eagle , a pub in', 'the eagle , a pub']
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
        """Hashes the texts."""
        self._datasketch = import_extra("datasketch")
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
        """Returns for each of the texts held whether another of them is near to it, or equal."""
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
    """Returns the four sets of prompts, of every record of both."""
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


Whole = NDArray[np.int64]


def longest_runs(
    texts: Sequence[Sequence[str]], others: Sequence[Sequence[str]]
) -> NDArray[np.int64]:
    """Returns for each text how many words in a row stand in the same row in one of the others.

    >>> longest_runs([["a", "pub", "in", "town"], ["x"]], [["the", "pub", "in", "X"]]).tolist()
    [2, 0]

    Returns:
        A count of words for each text, shape (texts,).
    """
    words, owner, room = _flat([*texts, *others])
    is_text = owner < len(texts)
    longest = np.zeros(len(texts), np.int64)
    places, stretches = np.arange(len(words)), words
    length = 0
    while len(places):
        # of each place whether its stretch stands in a text and in one of the others
        sides = np.zeros((2, int(stretches.max()) + 1), np.bool_)
        sides[is_text[places].astype(np.int64), stretches] = True
        common = (sides[0] & sides[1])[stretches]
        places, stretches = places[common], stretches[common]
        length += 1
        longest[owner[places[is_text[places]]]] = length
        longer = room[places] > length
        places, stretches = places[longer], stretches[longer]
        pairs = stretches * len(words) + words[places + length]
        stretches = np.unique(pairs, return_inverse=True)[1]
    return longest


def _flat(texts: Sequence[Sequence[str]]) -> tuple[Whole, Whole, Whole]:
    """Returns of every word its number, its text, and how many words its text has from it on."""
    numbers: dict[str, int] = {}
    words = [numbers.setdefault(word, len(numbers)) for word in chain.from_iterable(texts)]
    lengths = np.array([len(text) for text in texts], np.int64)
    owner = np.repeat(np.arange(len(texts)), lengths)
    room = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(words))
    return np.array(words, np.int64), owner, room


TAIL = 0.01
"""Share of the records not trained on by which a long run is called long."""
SHOWN = 5
"""Training records that the owner is shown."""


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Overlap of synthetic texts with some records."""

    longest: tuple[int, ...] = field(repr=False)
    """For each record, how many of its words in a row stand in one synthetic text."""
    exact: int
    """Records that are a synthetic text, but for blanks."""
    near: int
    """Records with a near duplicate among the synthetic texts."""

    def share_of_runs(self, words: int) -> float:
        """Returns the share of the records of which at least so many words in a row were found."""
        return sum(length >= words for length in self.longest) / len(self.longest)

    def limit_of_share(self, words: int) -> float:
        """Returns a bound that ``share_of_runs`` of all such records is below, at 95 %.

        Clopper and Pearson's, for records drawn independently: of few records none may be found by
        chance.
        """
        from scipy.stats import binomtest

        found = sum(length >= words for length in self.longest)
        test = binomtest(found, len(self.longest), alternative="less")
        return float(test.proportion_ci(confidence_level=0.95).high)

    def record(self) -> audits.TextsFound:
        """Returns the numbers as they are written down, shares in percent."""
        count = len(self.longest)
        return audits.TextsFound(
            records=count,
            exact_percent=100 * self.exact / count,
            near_duplicate_percent=100 * self.near / count,
            longest_run_median=float(np.median(self.longest)),
            longest_run_95_percent=float(np.quantile(self.longest, 0.95)),
            longest_run_most=max(self.longest),
        )


@dataclass(frozen=True, kw_only=True)
class Leakage:
    """Overlap with training records, beside the overlap with others."""

    training: Overlap
    unseen: Overlap | None
    """The control; None where there are no such records."""
    copies: int
    """Synthetic texts that are a training record, but for blanks."""
    auc: float | None = None
    """Probability that of a training record a longer run was found than of another, ties half."""
    p_value: float | None = None
    """Of one-sided Mann and Whitney's test that it is above one half."""

    @property
    def tail(self) -> audits.LongRuns | None:
        """The fewest words in a row that at most ``TAIL`` of the others have, and two shares.

        They are of the training records and of others that have as many; None without others.
        A few records copied as a whole move the probability above little, and these much.
        """
        if self.unseen is None:
            return None
        words = 0
        while self.unseen.share_of_runs(words) > TAIL:
            words += 1
        return audits.LongRuns(
            words=words,
            training_share=self.training.share_of_runs(words),
            unseen_share=self.unseen.share_of_runs(words),
        )

    def record(self) -> audits.Leakage:
        """Returns the numbers as they are written down."""
        return audits.Leakage(
            training=self.training.record(),
            unseen=None if self.unseen is None else self.unseen.record(),
            copies=self.copies,
            longest_run_auc=self.auc,
            longest_run_p_value=self.p_value,
            tail=self.tail,
        )


def leakage_of(
    synthetic: Sequence[str], training: Sequence[str], unseen: Sequence[str] | None
) -> Leakage:
    """Returns the overlap of synthetic texts with training records and with others."""
    near = NearDuplicates(synthetic)
    known = set(map(_plain, synthetic))
    of_training = _found(synthetic, known, near, training)
    of_unseen = None if unseen is None else _found(synthetic, known, near, unseen)
    trained_on = set(map(_plain, training))
    auc, p_value = _compared(of_training, of_unseen)
    return Leakage(
        training=of_training,
        unseen=of_unseen,
        copies=sum(_plain(text) in trained_on for text in synthetic),
        auc=auc,
        p_value=p_value,
    )


def allowed_share(share: float, epsilon: float, delta: float) -> float:
    """Returns the share of training records that epsilon allows, given that of other records."""
    return min(1.0, math.exp(min(epsilon, 700.0)) * share + delta)


def most_found(found: Overlap, texts: Sequence[str]) -> list[tuple[int, str]]:
    """Returns a few texts of which the longest runs were found, and how long they are."""
    order = sorted(range(len(texts)), key=lambda at: -found.longest[at])
    return [(found.longest[at], texts[at]) for at in order[:SHOWN] if found.longest[at]]


def _found(
    synthetic: Sequence[str], known: set[str], near: NearDuplicates, texts: Sequence[str]
) -> Overlap:
    runs = longest_runs([words_of(text) for text in texts], [words_of(text) for text in synthetic])
    return Overlap(
        longest=tuple(runs.tolist()),
        exact=sum(_plain(text) in known for text in texts),
        near=sum(near.near(texts)),
    )


def _compared(training: Overlap, unseen: Overlap | None) -> tuple[float | None, float | None]:
    if unseen is None:
        return None, None
    from scipy.stats import mannwhitneyu

    test = mannwhitneyu(training.longest, unseen.longest, alternative="greater")
    pairs = len(training.longest) * len(unseen.longest)
    return float(test.statistic) / pairs, float(test.pvalue)


def _plain(text: str) -> str:
    return " ".join(text.split())


def canaries_found(run: Path, texts: Sequence[str]) -> dict[str, CanariesInTexts]:
    """Returns how many canaries texts contain, included ones and others apart."""
    path = run / CANARIES
    if not path.exists():
        return {}
    kinds: dict[str, list[Sequence[str]]] = {"included": [], "not_included": []}
    for canary in read_record(path, KeptCanaries).canaries:
        kinds["included" if canary.included else "not_included"].append(canary.texts)
    return {kind: _stands_in(canaries, texts) for kind, canaries in kinds.items() if canaries}


def _stands_in(canaries: Sequence[Sequence[str]], texts: Sequence[str]) -> CanariesInTexts:
    everything = "\n".join(texts)
    runs = longest_runs(
        [words_of(text) for canary in canaries for text in canary],
        [words_of(text) for text in texts],
    )
    return CanariesInTexts(
        canaries=len(canaries),
        found=sum(any(text.strip() in everything for text in canary) for canary in canaries),
        longest_run=max(runs.tolist(), default=0),
    )
