"""Counts of words: what one unit may add, and that sums are exact."""

import math
import os
import re
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from dpft.tokenizers import (
    RESOLUTION,
    Caps,
    TokenizerConfig,
    WordHistogram,
    bounded_counts,
    count_words,
    is_special,
    save_tokenizer,
    train_pieces,
    words_of,
)
from tests.rejections import rejects
from tests.slowness import slow_but

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


@pytest.mark.slow
@given(words=WORDS, caps=CAPS)
def test_no_unit_adds_more_than_its_caps(words: list[str], caps: Caps) -> None:
    added = np.array([*bounded_counts(words, caps).values()], np.float64) * RESOLUTION
    assert len(added) <= caps.words
    assert np.linalg.norm(added) <= caps.l2
    assert (added <= caps.linf).all()


@pytest.mark.slow
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
    ("values", "name"),
    [
        ({"vocab_size": 1}, "tokenizer.vocab_size"),
        ({"l2_cap": 0.0}, "l2_cap"),
        ({"l2_cap": math.inf}, "l2_cap"),
        ({"noise_std": -1.0}, "noise_std"),
    ],
)
def test_a_value_out_of_range_is_named(values: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        TokenizerConfig(**{"vocab_size": 10, **values})


NUMBER = re.compile(r"\d+")
COUNTED = {
    "low": 50,
    "lower": 20,
    "newest": 60,
    "widest": 30,
    "slow": 25,
    "東京": 12,
    "new": 33,
}


@pytest.fixture(scope="module")
def histogram(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The released words in a folder with nothing else: there is no corpus."""
    path = tmp_path_factory.mktemp("released") / "histogram.tsv"
    path.write_text("".join(f"{word}\t{count}\n" for word, count in COUNTED.items()))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", slow_but(["unigram"], ["unigram", "bpe"]))
def test_pieces_are_made_without_the_corpus_and_cover_its_characters(
    histogram: Path, algorithm: str, tmp_path: Path
) -> None:
    found = train_pieces(histogram, tmp_path / "out", vocab_size=16, algorithm=algorithm)
    names = {piece for piece, _ in found}
    assert len(found) == len(names) == 16
    assert set("".join(COUNTED)) <= names
    assert "<unk>" not in names
    assert os.listdir(histogram.parent) == ["histogram.tsv"]


@pytest.mark.slow
def test_equal_histograms_give_equal_pieces(histogram: Path, tmp_path: Path) -> None:
    first, again = (
        train_pieces(histogram, tmp_path / "out", vocab_size=16, algorithm="unigram")
        for _ in range(2)
    )
    assert first == again


@pytest.mark.slow
@pytest.mark.parametrize("vocab_size", [5000, 3])
def test_what_the_words_do_not_allow_is_refused_with_a_number(
    histogram: Path, tmp_path: Path, vocab_size: int
) -> None:
    with rejects("tokenizer.vocab_size", vocab_size) as faults:
        train_pieces(histogram, tmp_path / "out", vocab_size=vocab_size, algorithm="unigram")
    allowed = int(NUMBER.findall(faults[0].message)[0])
    made = train_pieces(histogram, tmp_path / "out", vocab_size=allowed, algorithm="unigram")
    assert len(made) == allowed


@pytest.mark.slow
def test_a_folder_with_a_comma_in_its_name_is_one_folder(histogram: Path, tmp_path: Path) -> None:
    folder = tmp_path / "eps=1,vocab=16"
    folder.mkdir()
    (folder / histogram.name).write_bytes(histogram.read_bytes())
    made = train_pieces(folder / histogram.name, folder / "out", vocab_size=16, algorithm="unigram")
    assert len(made) == 16


@pytest.mark.slow
def test_the_pieces_of_char_are_the_most_frequent_characters_and_no_more(
    histogram: Path, tmp_path: Path
) -> None:
    letters = set("".join(COUNTED)) | {"\u2581"}
    made = train_pieces(histogram, tmp_path / "out", vocab_size=500, algorithm="char")
    assert {piece for piece, _ in made} == letters
    few = train_pieces(histogram, tmp_path / "out", vocab_size=3, algorithm="char")
    assert {piece for piece, _ in few} == {"\u2581", "w", "e"}


LETTERS = ("l", "o", "w", "e", "r")
PIECES = {
    "unigram": (
        *(("▁", -2.0), ("▁low", -2.5), ("er", -2.7)),
        *((letter, -5.0) for letter in LETTERS),
    ),
    "bpe": (
        *(("▁l", 0.0), ("▁lo", -1.0), ("▁low", -2.0), ("er", -3.0), ("▁", -4.0)),
        *((letter, -5.0 - place) for place, letter in enumerate(LETTERS)),
    ),
}


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_the_folder_is_one_that_auto_tokenizer_loads(tmp_path: Path, algorithm: str) -> None:
    pieces = PIECES[algorithm]
    tokens = save_tokenizer(tmp_path / "t", pieces, algorithm=algorithm, sentinels=3)
    made = AutoTokenizer.from_pretrained(tmp_path / "t")
    assert tokens == len(made) == 3 + len(pieces) + 3
    assert made.convert_ids_to_tokens([0, 1, 2]) == ["<pad>", "</s>", "<unk>"]
    sentinels = [made.convert_tokens_to_ids(f"<extra_id_{n}>") for n in range(3)]
    assert sentinels == [tokens - 1, tokens - 2, tokens - 3], "in T5's order"
    assert (made.pad_token_id, made.eos_token_id) == (0, 1)


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_a_text_is_parted_into_pieces_and_comes_back(tmp_path: Path, algorithm: str) -> None:
    save_tokenizer(tmp_path / "t", PIECES[algorithm], algorithm=algorithm, sentinels=2)
    made = AutoTokenizer.from_pretrained(tmp_path / "t")
    ids = made("lower  low\n<extra_id_1> z").input_ids
    parts = made.convert_ids_to_tokens(ids)
    assert parts[:3] == ["▁low", "er", "▁low"]
    assert parts[3] == "<extra_id_1>"
    assert parts[-2:] == ["<unk>", "</s>"]
    assert made.decode(made("lower low").input_ids, skip_special_tokens=True) == "lower low"


def test_words_that_spell_a_special_token_are_known() -> None:
    assert is_special("x<extra_id_0>") and is_special("</s>") and is_special("<pad>.")
    assert is_special("<extra_id_1234>"), "another vocabulary may have as many sentinels"
    assert not is_special("extra_id_1") and not is_special("extra")
