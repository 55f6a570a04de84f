"""A tokenizer from pieces: T5's ids, and texts that come back."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from dpft.tokenizers.pieces import Pieces
from dpft.tokenizers.saving import is_special, save_tokenizer

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
