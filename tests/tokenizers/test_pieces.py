"""Pieces from released words alone, in a process of its own."""

import os
import re
from pathlib import Path

import pytest

from dpft.tokenizers.pieces import VocabularyError, train_pieces

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
