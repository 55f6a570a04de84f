"""What is wrong with the section ``tokenizer`` is said in a sentence."""

from typing import Any

import pytest

from dpft.errors import InputError
from dpft.tokenizers.tokenizer_config import TokenizerConfig


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
