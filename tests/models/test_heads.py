import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
    GPT2LMHeadModel,
    GPT2Model,
    PretrainedConfig,
    PreTrainedModel,
    T5EncoderModel,
    ViTConfig,
)

from dpft.errors import InputError
from dpft.kinds import CAUSAL, CLASSIFIER, MASKED, SEQ2SEQ, Head
from dpft.models.architecture import (
    PooledClassifier,
    configure,
    describe,
    fresh_model,
    language_kind,
    new_parameters,
    padding_id,
)
from dpft.models.source import MEAN
from tests.models import small

CLASSES = Head(kind=CLASSIFIER, labels=("no", "yes"))
POOLER = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
CLASSIFIER_NAMES = {"classifier.weight", "classifier.bias"}


def saved_from(made: type[PreTrainedModel] | None, config: PretrainedConfig) -> PretrainedConfig:
    config.architectures = None if made is None else [made.__name__]
    return config


def new(made: type[PreTrainedModel] | None, config, head: Head, pooling: str | None = None) -> set:
    architecture = saved_from(made, config)
    configure(architecture, head)
    return set(new_parameters(architecture, head, pooling))


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (small.bert_config(), MASKED),
        (small.roberta_config(), MASKED),
        (small.gpt2_config(), CAUSAL),
        (small.t5_config(), SEQ2SEQ),
    ],
    ids=lambda value: getattr(value, "model_type", value),
)
def test_the_kind_of_a_language_model_follows_its_architecture(config, kind):
    assert language_kind(config) == kind


def test_what_is_no_language_model_is_refused():
    with pytest.raises(InputError, match="got model type vit"):
        language_kind(ViTConfig())


def test_a_head_in_words():
    assert describe(CLASSES) == "classifier"
    assert describe(Head(kind=MASKED)) == "masked language model"


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (BertModel, CLASSIFIER_NAMES),
        (BertForMaskedLM, POOLER | CLASSIFIER_NAMES),
        (BertForPreTraining, CLASSIFIER_NAMES),
        (BertForSequenceClassification, set()),
        (None, CLASSIFIER_NAMES),
    ],
)
def test_the_new_parameters_of_a_classifier_are_those_its_checkpoint_lacks(made, expected):
    assert new(made, small.bert_config(), CLASSES) == expected


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (BertModel, CLASSIFIER_NAMES),
        (BertForMaskedLM, CLASSIFIER_NAMES),
        (PooledClassifier, set()),
        (None, CLASSIFIER_NAMES),
    ],
)
def test_the_mean_has_no_new_pooler(made, expected):
    assert new(made, small.bert_config(), CLASSES, MEAN) == expected


@pytest.mark.parametrize("made", [BertModel, BertForSequenceClassification, None])
def test_a_checkpoint_without_a_language_head_lacks_it(made):
    names = new(made, small.bert_config(), Head(kind=MASKED))
    assert names and all(name.startswith("cls.predictions.") for name in names)


@pytest.mark.parametrize("made", [BertForMaskedLM, BertForPreTraining])
def test_a_checkpoint_with_a_masked_language_head_lacks_nothing(made):
    assert new(made, small.bert_config(), Head(kind=MASKED)) == set()


@pytest.mark.parametrize("made", [GPT2LMHeadModel, None])
def test_a_causal_model_lacks_only_the_score_of_its_classes(made):
    assert new(made, small.gpt2_config(), Head(kind=CAUSAL)) == set()
    assert new(GPT2LMHeadModel, small.gpt2_config(), CLASSES) == {"score.weight"}


def test_an_encoder_alone_lacks_the_decoder():
    names = new(T5EncoderModel, small.t5_config(), Head(kind=SEQ2SEQ))
    assert names and all("decoder" in name or "lm_head" in name for name in names)


def test_classes_stand_in_the_architecture():
    architecture = small.gpt2_config()
    configure(architecture, CLASSES)
    assert architecture.num_labels == 2
    assert architecture.id2label == {0: "no", 1: "yes"}
    assert architecture.label2id == {"no": 0, "yes": 1}
    assert architecture.pad_token_id == architecture.eos_token_id


def test_a_score_is_one_output():
    architecture = small.bert_config()
    configure(architecture, Head(kind=CLASSIFIER))
    model = fresh_model(architecture, Head(kind=CLASSIFIER), None)
    assert model(torch.tensor([[1, 2]])).logits.shape == (1, 1)


def test_a_language_model_is_left_as_it_is():
    architecture = small.gpt2_config()
    before = architecture.to_dict()
    configure(architecture, Head(kind=CAUSAL))
    assert architecture.to_dict() == before


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"pad_token_id": 7, "eos_token_id": 3}, 7),
        ({"pad_token_id": 0, "eos_token_id": 3}, 0),
        ({"pad_token_id": None, "eos_token_id": 3}, 3),
        ({"pad_token_id": None, "eos_token_id": [4, 5]}, 4),
        ({"pad_token_id": None, "eos_token_id": None}, 0),
    ],
)
def test_padding_is_the_models_own_or_its_end_of_text(settings, expected):
    assert padding_id(BertConfig(**settings)) == expected


@pytest.mark.parametrize("pooling", [None, MEAN])
def test_a_fresh_model_is_float32_and_has_no_address(pooling):
    architecture = small.bert_config(dtype="bfloat16")
    configure(architecture, CLASSES)
    model = fresh_model(architecture, CLASSES, pooling)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.name_or_path == ""


IDS = torch.tensor([[5, 6, 7, 0], [8, 9, 10, 11]])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])


def pooled(**settings: object) -> PooledClassifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return small.shaken(PooledClassifier(small.bert_config(num_labels=3, **settings)))


def test_logits_are_a_linear_layer_on_the_mean_over_the_tokens():
    model = pooled()
    states = model.backbone(input_ids=IDS, attention_mask=MASK).last_hidden_state
    mean = torch.stack([states[0, :3].mean(0), states[1].mean(0)])
    expected = mean @ model.classifier.weight.T + model.classifier.bias
    assert torch.allclose(model(IDS, MASK).logits, expected, atol=1e-6)


def test_padding_and_neighbors_change_nothing():
    model = pooled()
    alone = model(IDS[:1, :3], MASK[:1, :3]).logits
    assert torch.allclose(model(IDS, MASK).logits[:1], alone, atol=1e-6)


def test_the_encoders_weights_stay_and_its_pooler_goes():
    encoder = small.shaken(BertModel(small.bert_config()))
    before = {name: weight.clone() for name, weight in encoder.state_dict().items()}
    model = PooledClassifier(small.bert_config(num_labels=2), encoder)
    after = model.backbone.state_dict()
    assert set(before) - set(after) == {"pooler.dense.weight", "pooler.dense.bias"}
    assert all(torch.equal(weight, before[name]) for name, weight in after.items())


def test_a_fresh_head_is_small_and_random():
    head = PooledClassifier(small.bert_config(num_labels=40)).classifier
    assert 0.015 < head.weight.detach().std().item() < 0.025  # std 0.02
    assert not head.bias.any()


def test_a_saved_classifier_loads_as_it_was(tmp_path):
    model = pooled()
    model.save_pretrained(tmp_path)
    loaded = PooledClassifier.from_pretrained(tmp_path, config=model.config).eval()
    assert torch.equal(loaded(IDS, MASK).logits, model(IDS, MASK).logits)


def test_dropout_is_the_architectures():
    assert pooled(hidden_dropout_prob=0.3).dropout.p == 0.3
    encoder = GPT2Model(small.gpt2_config())
    model = PooledClassifier(small.gpt2_config(num_labels=2), encoder).eval()
    assert model(IDS, MASK).logits.shape == (2, 2)
