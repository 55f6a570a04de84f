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

from dpft.audit.base import needed

CONTINUATION, SPANS = HIDDEN = ("continuation", "spans")
"""What a model is to write of a record."""
_NO_WORD = re.compile(r"[^\w]")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A stretch of a record, what follows a prefix or a hidden span, and what a model wrote."""

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
    rows: int
    """As many as the records, or more where a corpus's records are cut into chunks; each is asked
    about by itself, and what follows is over them."""
    exact_match: float
    """Share of the rows of which all that was asked was written, in percent."""
    token_accuracy: float
    """Share of the asked tokens that stand in their places, mean over rows, in percent."""
    median_edit_distance: float
    """Levenshtein distance in tokens, of several spans their sum, median over rows."""
    median_edit_distance_words: float
    """Levenshtein distance of T5's words, median over rows (``t5_words``)."""
    mean_continuation_tokens: float
    """How many tokens are asked of a row."""


def scores_of(rows: Sequence[Sequence[Attempt]], *, records: int) -> MemorizationScores:
    """Returns the scores of attempts at some rows, at least one, each with one stretch or more.

    Args:
        rows: Of each row its stretches.
        records: How many records the rows are of.

    Guarantees:
        ``exact_match`` is at most ``token_accuracy``, and a distance in tokens is 0 exactly where
        a row matches.

    Raises:
        InputError: rapidfuzz is not installed.
    """
    tokens, words = [], []
    for row in rows:
        tokens.append(sum(edit_distance(one.continuation, one.written) for one in row))
        texts = [(t5_words(one.continuation_text), t5_words(one.written_text)) for one in row]
        words.append(sum(edit_distance(*pair) for pair in texts))
    matches = [all(one.continuation == one.written for one in row) for row in rows]
    asked = [sum(len(one.continuation) for one in row) for row in rows]
    right = [sum(map(_right, row)) for row in rows]
    return MemorizationScores(
        records=records,
        rows=len(rows),
        exact_match=100 * statistics.fmean(matches),
        token_accuracy=100 * statistics.fmean(a / b for a, b in zip(right, asked, strict=True)),
        median_edit_distance=statistics.median(tokens),
        median_edit_distance_words=statistics.median(words),
        mean_continuation_tokens=statistics.fmean(asked),
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


def _right(attempt: Attempt) -> int:
    pairs = zip(attempt.continuation, attempt.written, strict=False)
    return sum(one == other for one, other in pairs)
