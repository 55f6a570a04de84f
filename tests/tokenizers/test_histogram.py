"""Counts of words: what one unit may add, and that sums are exact."""

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpft.errors import InputError
from dpft.tokenizers import (
    RESOLUTION,
    Caps,
    TokenizerConfig,
    WordHistogram,
    bounded_counts,
    count_words,
    words_of,
)

STEP = Fraction(RESOLUTION)
LOOSE = Caps(words=256, l2=1e6, linf=1e6)


def as_dict(histogram: WordHistogram) -> dict[str, float]:
    return dict(zip(histogram.words, histogram.counts.tolist(), strict=True))


def count(*texts: str, caps: Caps = LOOSE) -> dict[str, float]:
    return as_dict(count_words(((text, "") for text in texts), caps, by_unit=False))


def test_words_are_counted_as_they_are_and_more_than_once_in_a_record() -> None:
    """Ponomareva et al. 2022, section 3.1: neither limited to one nor normalized."""
    assert count("Chrysler&apos;s car is a car", "A car") == {
        "Chrysler&apos;s": 1, "car": 3, "is": 1, "a": 1, "A": 1,
    }  # fmt: skip


def test_unicode_words_are_kept_and_what_no_file_holds_is_not() -> None:
    assert list(words_of("naïve 東京\u3000Żółw 👩‍👩‍👧 a\x00b \ud800")) == [
        "naïve", "東京", "Żółw", "👩‍👩‍👧", "a", "b",
    ]  # fmt: skip


def test_only_the_first_words_of_a_record_are_counted() -> None:
    assert count("a b c d a", caps=Caps(words=3, l2=9, linf=9)) == {"a": 1, "b": 1, "c": 1}


def test_a_count_is_cut_before_the_norm_scales() -> None:
    found = count("a a a a b", caps=Caps(words=9, l2=1.0, linf=2.0))
    assert found == {
        "a": pytest.approx(2 / math.sqrt(5), abs=2 * RESOLUTION),
        "b": pytest.approx(1 / math.sqrt(5), abs=2 * RESOLUTION),
    }


WORDS = st.lists(st.sampled_from("abcdefgh"), max_size=30)
CAPS = st.builds(Caps, words=st.integers(1, 12), l2=st.floats(0.1, 6), linf=st.floats(0.1, 4))


@given(words=WORDS, caps=CAPS)
def test_no_unit_adds_more_than_its_caps(words: list[str], caps: Caps) -> None:
    added = np.array([*bounded_counts(words, caps).values()], np.float64) * RESOLUTION
    assert len(added) <= caps.words
    assert np.linalg.norm(added) <= caps.l2
    assert (added <= caps.linf).all()


@settings(max_examples=50)
@given(
    texts=st.lists(WORDS.map(" ".join), min_size=1, max_size=6),
    units=st.lists(st.sampled_from("xyz"), min_size=6, max_size=6),
    caps=CAPS,
    by_unit=st.booleans(),
)
def test_twin_data_sets_differ_by_the_caps_at_most(
    texts: list[str], units: list[str], caps: Caps, by_unit: bool
) -> None:
    """Without one unit, the counts of the others are the same to the last bit."""
    records = list(zip(texts, units, strict=False))
    gone = units[0]
    others = records[1:] if not by_unit else [pair for pair in records if pair[1] != gone]
    whole = as_dict(count_words(records, caps, by_unit=by_unit))
    less = as_dict(count_words(others, caps, by_unit=by_unit))
    moved = np.array([value - less.get(word, 0.0) for word, value in whole.items()])
    assert set(less) <= set(whole)
    assert np.linalg.norm(moved) <= caps.l2
    assert (moved >= 0).all() and (moved <= caps.linf).all()
    assert len(whole.keys() - less.keys()) <= caps.words


def test_the_records_of_a_unit_count_as_one() -> None:
    caps = Caps(words=3, l2=9, linf=1)
    records = [("a b", "x"), ("a", "y"), ("a c d", "x")]
    histogram = count_words(records, caps, by_unit=True)
    assert as_dict(histogram) == {"a": 2, "b": 1}
    assert histogram.num_units == 2


def test_sums_do_not_depend_on_the_order_of_the_records() -> None:
    caps = Caps(words=5, l2=0.7, linf=1)
    texts = [f"w{n % 7} w{n % 5} w{n % 3} w" for n in range(200)]
    orders = [texts, texts[::-1], texts[100:] + texts[:100]]
    found = [count(*order, caps=caps) for order in orders]
    assert all(one == other for one, other in pairwise(found))


def test_a_norm_above_the_cap_by_less_than_a_float_tells_is_scaled_down() -> None:
    """The norm of three ones is above the float that is next to it from below."""
    cap = math.sqrt(3)
    assert cap * cap < 3
    counts = bounded_counts("abc", Caps(words=3, l2=cap, linf=1.0))
    assert sum(Fraction(count) ** 2 for count in counts.values()) <= (Fraction(cap) / STEP) ** 2
    assert bounded_counts("abcd", Caps(words=4, l2=2.0, linf=1.0)) == dict.fromkeys("abcd", 2**16)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"algorithm": "wordpiece"}, "tokenizer.algorithm must be one of unigram, bpe, char"),
        ({"vocab_size": 0}, "tokenizer.vocab_size must be at least 1"),
        ({"sentinels": -1}, "tokenizer.sentinels must be at least 0"),
        ({"words_per_record": 0}, "tokenizer.words_per_record must be at least 1"),
        ({"l2_cap": 0.0}, "tokenizer.l2_cap must be positive and finite"),
        ({"noise_std": -1.0}, "tokenizer.noise_std must be positive and finite"),
    ],
)
def test_a_value_out_of_range_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TokenizerConfig(**{"vocab_size": 10, **values})
