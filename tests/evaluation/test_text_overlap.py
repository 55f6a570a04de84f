"""What is called a near duplicate is one, and hardly any is missed."""

import random
import sys

import pytest

from dpft.evaluation.text_overlap import (
    THRESHOLD,
    NearDuplicates,
    grams_of,
    jaccard,
    prompt_sets,
    words_of,
)
from tests.rejections import rejects

LONG = "the eagle is a pub by the river in the city center with a garden and a low price for all"
EDITED = LONG.replace("for all", "for you")
OTHER = "a museum of stones stands at the end of a road where nobody has lived for ninety years"


def random_texts() -> list[str]:
    """Two hundred texts of forty words, and of half of them one with some words changed."""
    order = random.Random(0)
    texts = [[f"w{order.randrange(60)}" for _ in range(40)] for _ in range(200)]
    for words in texts[:100]:
        changed = list(words)
        for _ in range(order.randrange(3)):
            changed[order.randrange(40)] = "other"
        texts.append(changed)
    return [" ".join(words) for words in texts]


@pytest.mark.slow
def test_candidates_by_hashing_are_all_that_an_exact_comparison_finds() -> None:
    texts = random_texts()
    grams = [grams_of(text) for text in texts]
    expected = [
        any(jaccard(one, grams[at]) >= THRESHOLD for at in range(len(grams)) if at != number)
        for number, one in enumerate(grams)
    ]
    assert 60 < sum(expected) < 240
    held = NearDuplicates(texts)
    assert held.repeated(texts) == expected
    assert NearDuplicates(texts[:200]).near(texts[200:]) == expected[200:]


def test_a_text_is_no_duplicate_of_itself_but_of_its_equal() -> None:
    assert NearDuplicates([LONG, OTHER]).repeated([LONG, OTHER]) == [False, False]
    assert NearDuplicates([LONG, OTHER, LONG]).repeated([LONG, OTHER, LONG]) == [True, False, True]


def test_case_and_blanks_make_no_other_text() -> None:
    assert NearDuplicates([LONG]).near([LONG.upper(), f" {LONG}\n", OTHER]) == [True, True, False]


def test_few_words_are_near_to_the_same_alone() -> None:
    assert NearDuplicates(["a pub", ""]).near(["a pub", "a pub in town", "", "b"]) == [
        True, False, True, False,
    ]  # fmt: skip


def test_the_four_sets_hold_every_record_once() -> None:
    sets = prompt_sets([LONG, OTHER, EDITED], [LONG, "another text of five words"])
    assert sets.train_dup == (0, 2)
    assert sets.train_unique == (1,)
    assert sets.valid_in_train == (0,)
    assert sets.valid_unique == (1,)


def test_a_missing_library_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasketch", None)
    with rejects("datasketch"):
        NearDuplicates([LONG])


def test_words_of_scripts_without_blanks_are_characters() -> None:
    assert words_of("这家餐厅，") == ["这", "家", "餐", "厅", "，"]
    assert words_of("हिन्दी भाषा।") == ["हिन्दी", "भाषा", "।"]
