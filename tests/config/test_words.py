"""Which words set which keys."""

import pytest

from dpft.config.composing import Words, given_overrides, given_text

WORDS = ("task=e2e", "+a.b=c=d", "++x=1", "~tuning.space.train")


def test_a_key_is_what_stands_before_the_first_equals_sign() -> None:
    given = {"task": "e2e", "a.b": "c=d", "x": "1", "tuning.space.train": ""}
    assert given_overrides(WORDS) == given
    assert Words(job=WORDS, typed=()).keys == list(given)


def test_only_a_word_of_the_command_line_itself_counts_as_typed() -> None:
    words = Words(job=("task=e2e", "seed=1"), typed=("++privacy.witness=heads", "task=e2e"))
    assert words.were_typed("privacy.witness") and words.were_typed("task")
    assert not words.were_typed("privacy") and not words.were_typed("seed")


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("run=outputs/2026-01-31/12-00-00", "outputs/2026-01-31/12-00-00"),
        ("run='a run, the second'", "a run, the second"),
        ('run="it\'s"', "it's"),
        ("run=2024", "2024"),
        ("run=a,b", "a,b"),
        ("run=[", "["),
        ("run=null", None),
        ("run=", None),
        ("other=x", None),
    ],
)
def test_a_text_is_read_without_its_quotes(word: str, text: str | None) -> None:
    assert given_text([word], "run") == text
