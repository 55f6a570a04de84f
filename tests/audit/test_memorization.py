"""Exact match, token accuracy and two edit distances, by hand and by their relations."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpft.audit.memorization import Attempt, edit_distance, scores_of, t5_words

TOKENS = st.lists(st.integers(0, 3), max_size=6).map(tuple)


def attempt(continuation: tuple[int, ...], written: tuple[int, ...]) -> Attempt:
    texts = (" ".join(map(str, tokens)) for tokens in (continuation, written))
    said, wrote = texts
    return Attempt(
        continuation=continuation, written=written, continuation_text=said, written_text=wrote
    )


def test_scores_by_hand() -> None:
    scores = scores_of(
        [
            [attempt((1, 2, 3, 4), (1, 2, 3, 4))],
            [attempt((1, 2, 3, 4), (1, 9, 3))],  # one changed, one left out; two in their places
            [attempt((5, 6), (6,))],  # none in its place
        ],
        records=3,
    )
    assert scores.records == 3
    assert scores.exact_match == pytest.approx(100 / 3)
    assert scores.token_accuracy == pytest.approx(100 * (1 + 2 / 4 + 0) / 3)
    assert scores.median_edit_distance == 1
    assert scores.mean_continuation_tokens == pytest.approx(10 / 3)


def test_of_a_row_with_several_spans_all_must_be_filled_and_each_counts_by_its_tokens() -> None:
    row = [attempt((1, 2, 3), (1, 2, 3)), attempt((4,), ()), attempt((5, 6), (6, 5, 7))]
    scores = scores_of([row, row[:1]], records=1)
    assert (scores.records, scores.rows) == (1, 2)
    assert scores.exact_match == 50
    assert scores.token_accuracy == pytest.approx(100 * (3 / 6 + 1) / 2)
    assert scores.median_edit_distance == (0 + (0 + 1 + 2)) / 2
    assert scores.mean_continuation_tokens == (6 + 3) / 2


@given(st.lists(st.tuples(TOKENS.filter(bool), TOKENS), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_a_match_has_all_its_tokens_and_no_distance(pairs: list[tuple[tuple, tuple]]) -> None:
    scores = scores_of([[attempt(*pair)] for pair in pairs], records=len(pairs))
    assert scores.exact_match <= scores.token_accuracy + 1e-9
    for continuation, written in pairs:
        one = scores_of([[attempt(continuation, written)]], records=1)
        assert (one.exact_match == 100) == (one.median_edit_distance == 0)


def test_the_distance_of_words_is_not_that_of_tokens() -> None:
    one = Attempt(
        continuation=(1, 2, 3), written=(1, 2), continuation_text="A pub, cheap",
        written_text="a PUB",
    )  # fmt: skip
    scores = scores_of([[one]], records=1)
    assert scores.median_edit_distance == 1
    assert scores.median_edit_distance_words == 2  # the item between comma and blank, and "cheap"


def test_words_are_split_as_t5_splits_them() -> None:
    assert t5_words("It's £20-25.") == ["it", "s", "", "20", "25", ""]
    assert t5_words("") == [""]


def test_a_distance_counts_put_in_left_out_and_changed() -> None:
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance([1, 2, 3], []) == 3
