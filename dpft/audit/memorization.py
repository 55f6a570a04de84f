"""How much of a text a model writes on by itself: exact match, token accuracy, edit distance.

The metrics of Ponomareva et al. 2022 (Training Text-to-Text Transformers with Privacy Guarantees,
sections 4 and 5.2). Their median edit distances of up to 229 over 114 tokens cannot be distances
of tokens: T5's library, which they used, compares words. Both are here, by different names.
"""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpft.audit.extra import needed

_NO_WORD = re.compile(r"[^\w]")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A stretch of a record, and what a model wrote in its place."""

    continuation: tuple[int, ...]
    """Tokens of the record; at least one."""
    written: tuple[int, ...]
    """Tokens of the model, which may have stopped before."""
    continuation_text: str
    written_text: str


@dataclass(frozen=True, kw_only=True)
class MemorizationScores:
    """What a model wrote against what stands in some records."""

    records: int
    exact_match: float
    """Share of the records whose whole continuation was written, in percent."""
    token_accuracy: float
    """Share of a continuation's tokens that stand in their places, mean over records, in
    percent."""
    median_edit_distance: float
    """Levenshtein distance in tokens, median over records."""
    median_edit_distance_words: float
    """Levenshtein distance of T5's words, median over records (``t5_words``)."""
    mean_continuation_tokens: float
    """How long the continuations are."""


def scores_of(attempts: Sequence[Attempt]) -> MemorizationScores:
    """Returns the scores of attempts, at least one.

    Guarantees:
        ``exact_match`` is at most ``token_accuracy``, and a distance in tokens is 0 exactly where
        a record matches.

    Raises:
        InputError: rapidfuzz is not installed.
    """
    tokens, words = [], []
    for each in attempts:
        tokens.append(edit_distance(each.continuation, each.written))
        words.append(edit_distance(t5_words(each.continuation_text), t5_words(each.written_text)))
    matches = [each.continuation == each.written for each in attempts]
    return MemorizationScores(
        records=len(attempts),
        exact_match=100 * statistics.fmean(matches),
        token_accuracy=100 * statistics.fmean(map(_accuracy, attempts)),
        median_edit_distance=statistics.median(tokens),
        median_edit_distance_words=statistics.median(words),
        mean_continuation_tokens=statistics.fmean(len(each.continuation) for each in attempts),
    )


def edit_distance(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Returns how many items must be put in, left out or changed to make one of the other."""
    distance: int = needed("rapidfuzz.distance").Levenshtein.distance(list(one), list(other))
    return distance


def t5_words(text: str) -> list[str]:
    """Returns a text as ``edit_distance`` of T5's library splits it.

    It is lower-cased and split at every character that is no letter, digit or underscore, so that
    a mark beside a blank makes an empty item.

    >>> t5_words("The Eagle, a pub")
    ['the', 'eagle', '', 'a', 'pub']
    """
    return _NO_WORD.split(text.lower())


def _accuracy(attempt: Attempt) -> float:
    pairs = zip(attempt.continuation, attempt.written, strict=False)
    return sum(one == other for one, other in pairs) / len(attempt.continuation)
