import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    DebertaV2Config,
    DistilBertConfig,
    GPT2LMHeadModel,
    LlamaConfig,
    PretrainedConfig,
)

from dpft.kinds import CLASSIFIER, Head
from dpft.models.heads import fresh_model
from dpft.models.positions import max_positions, takes_position_ids, takes_token_types
from dpft.models.source import MEAN
from tests.models import small

DEBERTA = DebertaV2Config(
    hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, vocab_size=48,
    relative_attention=True, pos_att_type=["p2c", "c2p"], position_biased_input=False,
    type_vocab_size=0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "takes"), [("bert", True), ("gpt2", True), ("roberta", False), ("t5", False)]
)
def test_position_ids_go_to_models_that_count_from_zero(name, takes):
    assert takes_position_ids(small.language_model(name)) is takes


@pytest.mark.parametrize(("config", "takes"), [("bert", True), ("roberta", False)])
@pytest.mark.parametrize("pooling", [None, MEAN])
def test_a_classifier_counts_as_its_encoder_does(config, takes, pooling):
    architecture = small.LANGUAGE_MODELS[config][0](num_labels=2)
    model = fresh_model(architecture, Head(kind=CLASSIFIER, labels=("a", "b")), pooling)
    assert takes_position_ids(model) is takes


@pytest.mark.parametrize("name", ["bert", "gpt2", "roberta"])
def test_the_given_ids_are_those_the_model_counts_itself(name):
    """A row padded on the right, with what dpft gives and with what the model makes."""
    model = small.language_model(name)
    ids = torch.tensor([[5, 6, 7, 1]])
    mask = torch.tensor([[1, 1, 1, 0]])
    given = {"position_ids": torch.arange(4)[None]} if takes_position_ids(model) else {}
    with torch.no_grad():
        padded = model(input_ids=ids, attention_mask=mask, **given).logits[:, :3]
        alone = model(input_ids=ids[:, :3]).logits
    assert torch.allclose(padded, alone, atol=1e-6)


@pytest.mark.parametrize(
    ("config", "most"),
    [
        (small.bert_config(), 64),
        (small.gpt2_config(), 64),
        (small.roberta_config(), 64),  # 66, less padding's id and the one before it
        (small.t5_config(), None),
        (DEBERTA, None),
        (LlamaConfig(max_position_embeddings=128), 128),
    ],
    ids=lambda value: getattr(value, "model_type", value),
)
def test_the_longest_text_follows_the_positions(config: PretrainedConfig, most: int | None):
    assert max_positions(config) == most


@pytest.mark.parametrize("name", ["bert", "gpt2", "roberta"])
def test_the_longest_text_is_read_and_one_token_more_is_not(name):
    model = small.language_model(name)
    most = max_positions(model.config)
    assert model(torch.full((1, most), 5)).logits.shape[1] == most
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.full((1, most + 1), 5))


def test_a_model_of_relative_positions_reads_longer_texts():
    model = AutoModelForMaskedLM.from_config(DEBERTA).eval()
    assert model(torch.full((1, 600), 5)).logits.shape[1] == 600


@pytest.mark.parametrize(
    ("config", "takes"),
    [
        (small.bert_config(), True),
        (small.roberta_config(type_vocab_size=1), False),
        (DEBERTA, False),
        (DistilBertConfig(), False),
        (small.gpt2_config(), False),
    ],
    ids=lambda value: getattr(value, "model_type", value),
)
def test_token_types_go_to_models_that_learned_them(config, takes):
    assert takes_token_types(config) is takes


def test_a_causal_model_has_positions_of_its_base():
    assert takes_position_ids(GPT2LMHeadModel(small.gpt2_config()))
