import pytest
import torch
from transformers import (
    AutoTokenizer,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
)

from dpft.models.source import EMBEDDED_MODEL
from dpft.models.vocabulary import add_tokens, grow, start_rows
from tests.models import small

TOKENS = ("<persona>", "<speaker1>", "<speaker2>")


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerBase:
    """GPT-2's kind: bytes, so that every name has pieces."""
    return AutoTokenizer.from_pretrained(EMBEDDED_MODEL)


def model_of(kind: str, rows: int):
    """A model with tied embeddings, with a head of its own, or of encoder and decoder."""
    if kind == "untied":
        config = LlamaConfig(
            vocab_size=rows, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, tie_word_embeddings=False,
        )  # fmt: skip
        return small.shaken(LlamaForCausalLM(config))
    return small.language_model(kind, vocab_size=rows)


def test_tokens_are_added_once_as_special_ones(tokenizer):
    before = len(tokenizer)
    pieces = add_tokens(tokenizer, TOKENS)
    assert list(pieces) == [before, before + 1, before + 2]
    assert tokenizer.convert_tokens_to_ids(list(TOKENS)) == list(pieces)
    assert len({*pieces.values()}) == len(TOKENS)
    assert add_tokens(tokenizer, TOKENS) == {}
    assert len(tokenizer) == before + 3
    ids = [before, *tokenizer("hi")["input_ids"]]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hi"


def test_a_tokens_pieces_are_those_of_its_name_as_text(tokenizer):
    read = tokenizer("speaker1")["input_ids"]
    assert tuple(read) == add_tokens(tokenizer, ["<speaker1>"])[len(tokenizer) - 1]
    assert tokenizer.decode(read) == "speaker1"


def test_a_saved_tokenizer_knows_the_tokens(tokenizer, tmp_path):
    add_tokens(tokenizer, TOKENS)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert add_tokens(loaded, TOKENS) == {}
    assert len(loaded) == len(tokenizer)


@pytest.mark.parametrize("kind", ["gpt2", "untied", "t5"])
def test_a_new_row_is_the_mean_of_its_names_and_the_old_rows_stay(kind):
    model = model_of(kind, 48)
    before = [table.clone() for table in tables(model)]
    state = torch.get_rng_state()
    start_rows(model, {48: (3, 4), 49: (4, 5, 9)})
    assert torch.equal(torch.get_rng_state(), state)
    assert model.config.vocab_size == 50
    for old, table in zip(before, tables(model), strict=True):
        assert table.shape == (50, 16) and table.dtype == torch.float32
        assert torch.equal(table[:48], old)
        assert torch.allclose(table[48], (old[3] + old[4]) / 2)
        assert torch.allclose(table[49], (old[4] + old[5] + old[9]) / 3)


def tables(model) -> list[torch.Tensor]:
    return [model.get_input_embeddings().weight, model.get_output_embeddings().weight]


@pytest.mark.parametrize("kind", ["gpt2", "untied"])
def test_weights_stay_tied_or_apart_and_train_as_before(kind):
    model = model_of(kind, 48)
    model.get_input_embeddings().weight.requires_grad_(False)
    open_before = [table.requires_grad for table in tables(model)]
    start_rows(model, {48: (3,)})
    own, head = tables(model)
    assert (own is head) is (kind == "gpt2")
    assert [table.requires_grad for table in tables(model)] == open_before


def test_the_bias_of_a_head_has_a_new_entry_too():
    model = small.language_model("bert")
    bias = model.get_output_embeddings().bias.clone()
    start_rows(model, {48: (3, 4)})
    grown = model.get_output_embeddings().bias
    assert torch.allclose(grown[48], (bias[3] + bias[4]) / 2)
    assert torch.equal(grown[:48], bias)


def test_a_padded_vocabulary_does_not_grow_and_its_row_is_used():
    model = model_of("t5", 64)
    before = tables(model)[0].clone()
    start_rows(model, {48: (3, 4)})
    (table, _) = tables(model)
    assert table.shape[0] == 64
    assert torch.allclose(table[48], (before[3] + before[4]) / 2)
    assert torch.equal(table[49:], before[49:])


def test_nothing_new_changes_nothing_and_a_vocabulary_never_shrinks():
    model = model_of("gpt2", 48)
    table = tables(model)[0]
    start_rows(model, {})
    grow(model, 5)
    assert tables(model)[0] is table


def test_a_model_without_storage_grows(tokenizer):
    with torch.device("meta"):
        model = GPT2LMHeadModel(small.gpt2_config())
    before = sum(p.numel() for p in model.parameters())
    grow(model, 51)
    assert sum(p.numel() for p in model.parameters()) == before + 3 * 16
    assert {p.device.type for p in model.parameters()} == {"meta"}
