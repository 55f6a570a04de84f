"""Ranks pages for a search as the site's own search does, so that a test can hold its first hits.

The theme's search is lunr (Okapi BM25) with titles a thousand times as heavy as texts; each word of
a query also stands for the words that it begins; a page counts more than a section of it, and one
that has all words more than one that has some. Left out is lunr's stemming.
"""

import html
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

WEIGHTS = {"title": 1000.0, "text": 1.0}
K1 = 1.2
STOP_WORDS = {"a", "and", "by", "for", "in", "is", "of", "on", "or", "the", "to", "with"}
"""Of those that lunr leaves out, the ones that a query here may have."""


def words_of(text: str) -> list[str]:
    """Return the words of a title or a text of the index, lower case, with their punctuation."""
    plain = html.unescape(re.sub(r"<[^>]*>", " ", text))
    return [word for word in re.split(r"[\s\-]+", plain.lower()) if word]


def first_hits(entries: Sequence[Mapping[str, Any]], query: str, number: int = 3) -> list[str]:
    """Return the locations of the best pages for a query, each page once, best first.

    Args:
        entries: What ``search_index.json`` has under ``docs``.
        query: What a reader types.
        number: How many are wanted.
    """
    counts = [{name: Counter(words_of(entry[name])) for name in WEIGHTS} for entry in entries]
    having = Counter(word for fields in counts for word in set().union(*fields.values()))
    asked = [word for word in words_of(query) if word not in STOP_WORDS]
    meant = {ask: [word for word in having if word.startswith(ask)] for ask in asked}
    scores: dict[str, float] = {}
    for entry, fields in zip(entries, counts, strict=True):
        score, found = 0.0, 0
        for words in meant.values():
            matching = [
                weight * _weight(word, fields[name][word], having, len(entries))
                for name, weight in WEIGHTS.items()
                for word in words
                if word in fields[name]
            ]
            score += sum(matching)
            found += bool(matching)
        page, _, section = entry["location"].partition("#")
        boost = (not section) + found / len(asked)
        scores[page] = max(scores.get(page, 0.0), score * (1 + boost**2))
    best = sorted(scores, key=lambda page: -scores[page])[:number]
    return [page for page in best if scores[page] > 0]


def _weight(word: str, times: int, having: Mapping[str, int], entries: int) -> float:
    rarity = math.log(1 + (entries - having[word] + 0.5) / (having[word] + 0.5))
    return rarity * (K1 + 1) * times / (K1 + times)
