"""Pieces from released words alone, in a process of its own."""

import os
import re
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from dpft.tokenizers import Pieces, VocabularyError, is_special, save_tokenizer, train_pieces

NUMBER = re.compile(r"\d+")
WORDS = {"low": 50, "lower": 20, "newest": 60, "widest": 30, "slow": 25, "東京": 12, "new": 33}


@pytest.fixture(scope="module")
def histogram(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The released words in a folder with nothing else: there is no corpus."""
    path = tmp_path_factory.mktemp("released") / "histogram.tsv"
    path.write_text("".join(f"{word}\t{count}\n" for word, count in WORDS.items()))
    return path


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_pieces_are_made_without_the_corpus_and_cover_its_characters(
    histogram: Path, algorithm: str, tmp_path: Path
) -> None:
    found = train_pieces(histogram, tmp_path / "out", vocab_size=16, algorithm=algorithm)
    names = {piece for piece, _ in found.pieces}
    assert len(found.pieces) == len(names) == 16
    assert set("".join(WORDS)) <= names
    assert "<unk>" not in names
    assert os.listdir(histogram.parent) == ["histogram.tsv"]


def test_equal_histograms_give_equal_pieces(histogram: Path, tmp_path: Path) -> None:
    first, again = (
        train_pieces(histogram, tmp_path / "out", vocab_size=16, algorithm="unigram")
        for _ in range(2)
    )
    assert first == again


@pytest.mark.parametrize(
    ("vocab_size", "message"), [(5000, "must be at most"), (3, "must be at least")]
)
def test_what_the_words_do_not_allow_is_refused_with_a_number(
    histogram: Path, tmp_path: Path, vocab_size: int, message: str
) -> None:
    with pytest.raises(VocabularyError, match=rf"vocab_size {message} \d+") as refused:
        train_pieces(histogram, tmp_path / "out", vocab_size=vocab_size, algorithm="unigram")
    allowed = int(NUMBER.findall(str(refused.value))[0])
    made = train_pieces(histogram, tmp_path / "out", vocab_size=allowed, algorithm="unigram")
    assert len(made.pieces) == allowed


def test_a_folder_with_a_comma_in_its_name_is_one_folder(histogram: Path, tmp_path: Path) -> None:
    folder = tmp_path / "eps=1,vocab=16"
    folder.mkdir()
    (folder / histogram.name).write_bytes(histogram.read_bytes())
    made = train_pieces(folder / histogram.name, folder / "out", vocab_size=16, algorithm="unigram")
    assert len(made.pieces) == 16


def test_the_pieces_of_char_are_the_most_frequent_characters_and_no_more(
    histogram: Path, tmp_path: Path
) -> None:
    letters = set("".join(WORDS)) | {"\u2581"}
    made = train_pieces(histogram, tmp_path / "out", vocab_size=500, algorithm="char")
    assert {piece for piece, _ in made.pieces} == letters
    few = train_pieces(histogram, tmp_path / "out", vocab_size=3, algorithm="char")
    assert {piece for piece, _ in few.pieces} == {"\u2581", "w", "e"}


LETTERS = ("l", "o", "w", "e", "r")
PIECES = {
    "unigram": Pieces(
        pieces=(("▁", -2.0), ("▁low", -2.5), ("er", -2.7), *((each, -5.0) for each in LETTERS))
    ),
    "bpe": Pieces(
        pieces=(
            *(("▁l", 0.0), ("▁lo", -1.0), ("▁low", -2.0), ("er", -3.0), ("▁", -4.0)),
            *((each, -5.0 - place) for place, each in enumerate(LETTERS)),
        )
    ),
}


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_the_folder_is_one_that_auto_tokenizer_loads(tmp_path: Path, algorithm: str) -> None:
    pieces = PIECES[algorithm]
    tokens = save_tokenizer(tmp_path / "t", pieces, algorithm=algorithm, sentinels=3)
    made = AutoTokenizer.from_pretrained(tmp_path / "t")
    assert tokens == len(made) == 3 + len(pieces.pieces) + 3
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
