"""The longest stretch of words that a text has in common with any of many others.

Library functions for a longest common substring compare two texts; held against thousands they take
minutes. Here a common stretch of n + 1 words is looked for only where one of n was found, in all
texts at once, by numbers that stand for stretches. The result is exact: the tests hold it against
the standard library's difflib.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]


def longest_runs(
    texts: Sequence[Sequence[str]], others: Sequence[Sequence[str]]
) -> NDArray[np.int64]:
    """Returns for each text how many words in a row stand in the same row in one of the others.

    >>> longest_runs([["a", "pub", "in", "town"], ["x"]], [["the", "pub", "in", "X"]]).tolist()
    [2, 0]

    Args:
        texts: Words of each.
        others: Words of each of those that they are compared with.

    Returns:
        A count of words for each text, shape (texts,).
    """
    words, owner, room = _flat([*texts, *others])
    is_text = owner < len(texts)
    longest = np.zeros(len(texts), np.int64)
    places, stretches = np.arange(len(words)), words
    length = 0
    while len(places):
        common = _on_both_sides(stretches, is_text[places])
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


def _on_both_sides(stretches: Whole, is_text: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Returns for each place whether its stretch stands in a text and in one of the others."""
    sides = np.zeros((2, int(stretches.max()) + 1), np.bool_)
    sides[is_text.astype(np.int64), stretches] = True
    both: NDArray[np.bool_] = sides[0] & sides[1]
    return both[stretches]
