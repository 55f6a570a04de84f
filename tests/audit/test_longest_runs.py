"""The longest common stretch of words, against the standard library's."""

from difflib import SequenceMatcher

from hypothesis import given, settings
from hypothesis import strategies as st

from dpft.audit.longest_runs import longest_runs

TEXTS = st.lists(st.lists(st.sampled_from("abc"), max_size=8), max_size=5)


def by_difflib(text: list[str], others: list[list[str]]) -> int:
    return max(
        (
            SequenceMatcher(None, text, other, autojunk=False).find_longest_match().size
            for other in others
        ),
        default=0,
    )


@given(TEXTS, TEXTS)
@settings(max_examples=150, deadline=None)
def test_the_longest_run_is_difflibs(texts: list[list[str]], others: list[list[str]]) -> None:
    assert longest_runs(texts, others).tolist() == [by_difflib(text, others) for text in texts]


def test_no_run_goes_over_the_end_of_a_text() -> None:
    assert longest_runs([["a", "b"]], [["a"], ["b"]]).tolist() == [1]
    assert longest_runs([["a"], ["b"]], [["a", "b"]]).tolist() == [1, 1]


def test_a_long_copy_is_found_whole() -> None:
    text = [str(number % 37) for number in range(500)]
    assert longest_runs([text], [["x", *text, "y"]]).tolist() == [500]
