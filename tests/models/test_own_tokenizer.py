"""A model of random weights takes the size and the special tokens of a tokenizer of one's own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig, GPT2Config, T5Config

from dpft.errors import InputError
from dpft.kinds import CAUSAL, SEQ2SEQ
from dpft.models.architecture import read_architecture
from dpft.models.loading import language_head, load_tokenizer
from dpft.models.own_tokenizer import own_tokenizer_folder
from dpft.models.source import ModelConfig
from dpft.tokenizers.pieces import Pieces
from dpft.tokenizers.saving import save_tokenizer

SMALL: dict[str, Any] = {
    "gpt2": GPT2Config(n_embd=8, n_layer=1, n_head=1),
    "t5": T5Config(d_model=8, num_layers=1, num_heads=1, d_kv=8, d_ff=8),
    "bert": BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1),
}


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    """A run of dpft tokenizer, as far as a model needs it."""
    run = tmp_path / "run"
    run.mkdir()
    pieces = Pieces(pieces=(("▁", -1.0), ("a", -2.0), ("b", -3.0)))
    save_tokenizer(run / "tokenizer", pieces, algorithm="unigram", sentinels=4)
    return run


def configured(folder: Path, kind: str, tokenizer: Path) -> ModelConfig:
    SMALL[kind].save_pretrained(folder)
    return ModelConfig(name="small", path=str(folder), init="random", tokenizer=str(tokenizer))


@pytest.mark.parametrize("kind", SMALL)
def test_the_configuration_fits_the_tokenizer(tmp_path: Path, vocabulary: Path, kind: str) -> None:
    config = read_architecture(configured(tmp_path / kind, kind, vocabulary)).config()
    assert config.vocab_size == 10
    assert (config.pad_token_id, config.eos_token_id) == (0, 1)
    if kind == "t5":
        assert config.decoder_start_token_id == 0


@pytest.mark.parametrize("inside", ["", "tokenizer"])
def test_the_folder_of_a_run_or_of_a_tokenizer_is_read(
    tmp_path: Path, vocabulary: Path, inside: str
) -> None:
    model = configured(tmp_path / "gpt2", "gpt2", vocabulary / inside)
    assert own_tokenizer_folder(model) == vocabulary / "tokenizer"
    tokenizer = load_tokenizer(read_architecture(model), kind=CAUSAL)
    assert tokenizer("ab").input_ids == [3, 4, 5, 1]


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no tokenizer; give the folder that dpft tokenizer"):
        read_architecture(configured(tmp_path / "gpt2", "gpt2", tmp_path))


def test_a_damaged_tokenizer_is_refused_in_a_sentence(tmp_path: Path, vocabulary: Path) -> None:
    (vocabulary / "tokenizer" / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="could not be read as a tokenizer"):
        read_architecture(configured(tmp_path / "gpt2", "gpt2", vocabulary))


def drawn(vocabulary: Path, **architecture: Any) -> ModelConfig:
    return ModelConfig(
        name="drawn", init="random", tokenizer=str(vocabulary), architecture=architecture
    )


def test_an_architecture_in_the_configuration_needs_no_folder(vocabulary: Path) -> None:
    model = drawn(vocabulary, model_type="t5", d_model=16, num_layers=1)
    config = read_architecture(model).config()
    assert (config.model_type, config.d_model, config.vocab_size) == ("t5", 16, 10)
    assert load_tokenizer(read_architecture(model), kind=SEQ2SEQ)("b").input_ids == [3, 5, 1]


@pytest.mark.parametrize("wrong", [{"model_type": "t6"}, {}, {"model_type": "t5", "d_model": "x"}])
def test_an_architecture_that_transformers_does_not_know_is_refused(
    vocabulary: Path, wrong: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match="model.architecture must name|model needs model.path"):
        read_architecture(drawn(vocabulary, **wrong))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init": "pretrained", "tokenizer": None}, "has no weights, only an architecture"),
        ({"init": "pretrained"}, "model.tokenizer needs model.init=random"),
    ],
)
def test_an_architecture_alone_needs_a_tokenizer_and_starts_at_random(
    vocabulary: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        replace(drawn(vocabulary, model_type="t5"), **changes)


def test_an_architecture_of_a_language_model_alone_needs_a_tokenizer(vocabulary: Path) -> None:
    architecture = read_architecture(replace(drawn(vocabulary, model_type="t5"), tokenizer=None))
    with pytest.raises(InputError, match="model=drawn has no tokenizer; give model.tokenizer=RUN"):
        language_head(architecture)
