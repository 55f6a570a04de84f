"""A model of random weights takes the size and the special tokens of a tokenizer of one's own."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertModel,
    DebertaV2Config,
    DistilBertConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    MambaConfig,
    PretrainedConfig,
    PreTrainedModel,
    T5Config,
    T5EncoderModel,
    ViTConfig,
)

from dpft.config.load import from_values
from dpft.constants import CAUSAL, CLASSIFIER, MASKED, SEQ2SEQ, Head
from dpft.models import source
from dpft.models.architecture import (
    Architecture,
    PooledClassifier,
    configure,
    fresh_model,
    language_kind,
    max_positions,
    new_parameters,
    own_tokenizer_folder,
    padding_id,
    read_architecture,
    takes_position_ids,
    takes_token_types,
)
from dpft.models.loading import language_head, load_model, load_tokenizer, meta_model
from dpft.models.source import MEAN, ModelConfig
from dpft.tokenizers import save_tokenizer
from tests.models import small
from tests.rejections import rejects
from tests.slowness import slow

CLASSES = Head(kind=CLASSIFIER, labels=("no", "yes", "maybe"))


def architecture(folder: Path, **settings: object) -> Architecture:
    return read_architecture(ModelConfig(name="small", path=str(folder), **settings))


@pytest.mark.slow
def test_nobody_changes_what_was_read(tmp_path: Path) -> None:
    """A head writes its classes, and transformers its own notes, into the configuration."""
    known = architecture(small.save("bert", tmp_path))
    before = known.read.to_dict()
    known.config().vocab_size = 1
    assert known.config(CLASSES).num_labels == 3
    meta_model(known, CLASSES).config.id2label[0] = "other"
    load_model(known, seed=0, head=CLASSES).config.hidden_size = 1
    assert known.read.to_dict() == before
    assert known.config().num_labels == 2


@pytest.mark.slow
def test_the_vocabulary_has_a_size_and_a_saved_pooler_is_known_again(tmp_path: Path) -> None:
    bare = architecture(small.save("bert", tmp_path / "base"))
    assert (bare.vocabulary_size, bare.pooling, bare.is_pooled) == (48, None, False)
    chosen = architecture(tmp_path / "base", pooling=MEAN)
    assert (chosen.pooling, chosen.is_pooled) == (MEAN, False)
    load_model(chosen, seed=0, head=CLASSES).save_pretrained(tmp_path / "saved")
    saved = architecture(tmp_path / "saved")
    assert (saved.pooling, saved.is_pooled) == (MEAN, True)


def test_trust_rule_11_code_in_a_checkpoint_is_not_executed(tmp_path: Path) -> None:
    folder = small.save("gpt2", tmp_path / "model")
    values = json.loads((folder / "config.json").read_text())
    values |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    with rejects("model.path", str(folder)):
        architecture(folder)
    assert not (tmp_path / "executed").exists()


def test_an_unreachable_hub_is_reported_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source, "hub_is_reachable", lambda: False)
    start = time.perf_counter()
    name = "nobody/nothing-of-the-kind"
    with rejects("model.hub_name", name):
        read_architecture(ModelConfig(name="x", hub_name=name))
    assert time.perf_counter() - start < 5  # transformers retries for 23 seconds by itself


@pytest.mark.slow
def test_of_model_architecture_a_checkpoint_takes_its_dropout_alone(tmp_path: Path) -> None:
    folder = small.save("bert", tmp_path)
    wide = {"model_type": "bert", "hidden_size": 4096, "hidden_dropout_prob": 0.3}
    known = architecture(folder, architecture=wide)
    assert known.read.hidden_dropout_prob == 0.3
    assert known.read.hidden_size == architecture(folder).read.hidden_size
    loaded = load_model(known, seed=0, head=CLASSES)
    assert {m.p for m in loaded.modules() if isinstance(m, torch.nn.Dropout)} >= {0.3}
    with rejects("model.architecture.dropout_rate", 0.1):
        architecture(folder, architecture={"dropout_rate": 0.1})


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
    pieces = (("▁", -1.0), ("a", -2.0), ("b", -3.0))
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


@pytest.mark.parametrize("content", [None, "{}"])
def test_a_tokenizer_that_is_missing_or_damaged_is_rejected(
    tmp_path: Path, vocabulary: Path, content: str | None
) -> None:
    file = vocabulary / "tokenizer" / "tokenizer.json"
    file.unlink() if content is None else file.write_text(content)
    with rejects("model.tokenizer"):
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


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"architecture": {"model_type": "t6"}}, "model.architecture"),
        ({"architecture": {"model_type": "t5", "d_model": "x"}}, "model.architecture"),
        ({"architecture": {}}, "model"),
        ({"init": "pretrained", "tokenizer": None}, "model.init"),
        ({"init": "pretrained"}, "model.tokenizer"),
        ({"tokenizer": None}, "model.tokenizer"),
    ],
)
def test_an_architecture_without_weights_must_be_known_and_needs_a_tokenizer(
    vocabulary: Path, changes: dict[str, Any], key: str
) -> None:
    with rejects(key):
        values = {**drawn(vocabulary, model_type="t5").model_dump(), **changes}
        language_head(read_architecture(from_values(values, ModelConfig)))


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


CLASSES_HEADS = Head(kind=CLASSIFIER, labels=("no", "yes"))
POOLER = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
CLASSIFIER_NAMES = {"classifier.weight", "classifier.bias"}


def saved_from(made: type[PreTrainedModel] | None, config: PretrainedConfig) -> PretrainedConfig:
    config.architectures = None if made is None else [made.__name__]
    return config


def new(made: type[PreTrainedModel] | None, config, head: Head, pooling: str | None = None) -> set:
    architecture = saved_from(made, config)
    configure(architecture, head)
    return set(new_parameters(architecture, head, pooling))


def test_a_family_without_a_classifier_is_classified_by_the_mean():
    sizes = {"vocab_size": 8, "hidden_size": 8, "state_size": 4, "num_hidden_layers": 1}
    config = MambaConfig(**sizes)
    configure(config, CLASSES)
    with rejects("model.pooling"):
        fresh_model(config, CLASSES, None)
    ids = torch.tensor([[1, 2, 3]])
    logits = fresh_model(config, CLASSES, MEAN)(ids, torch.ones_like(ids)).logits
    assert logits.shape == (1, 3)


def test_what_is_no_language_model_is_refused():
    with rejects("model", "vit"):
        language_kind(ViTConfig())


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (BertForMaskedLM, POOLER | CLASSIFIER_NAMES),
        (BertForSequenceClassification, set()),
        *slow(
            (BertModel, CLASSIFIER_NAMES),
            (BertForPreTraining, CLASSIFIER_NAMES),
            (None, CLASSIFIER_NAMES),
        ),
    ],
)
def test_the_new_parameters_of_a_classifier_are_those_its_checkpoint_lacks(made, expected):
    assert new(made, small.bert_config(), CLASSES_HEADS) == expected


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (BertForMaskedLM, CLASSIFIER_NAMES),
        *slow((BertModel, CLASSIFIER_NAMES), (PooledClassifier, set()), (None, CLASSIFIER_NAMES)),
    ],
)
def test_the_mean_has_no_new_pooler(made, expected):
    assert new(made, small.bert_config(), CLASSES_HEADS, MEAN) == expected


@pytest.mark.parametrize("made", [BertModel, *slow((BertForSequenceClassification,), (None,))])
def test_a_checkpoint_without_a_language_head_lacks_it(made):
    names = new(made, small.bert_config(), Head(kind=MASKED))
    assert names and all(name.startswith("cls.predictions.") for name in names)


@pytest.mark.parametrize("made", [BertForMaskedLM, BertForPreTraining])
def test_a_checkpoint_with_a_masked_language_head_lacks_nothing(made):
    assert new(made, small.bert_config(), Head(kind=MASKED)) == set()


@pytest.mark.parametrize("made", [GPT2LMHeadModel, *slow((None,))])
def test_a_causal_model_lacks_only_the_score_of_its_classes(made):
    assert new(made, small.gpt2_config(), Head(kind=CAUSAL)) == set()
    assert new(GPT2LMHeadModel, small.gpt2_config(), CLASSES_HEADS) == {"score.weight"}


@pytest.mark.slow
def test_an_encoder_alone_lacks_the_decoder():
    names = new(T5EncoderModel, small.t5_config(), Head(kind=SEQ2SEQ))
    assert names and all("decoder" in name or "lm_head" in name for name in names)


def test_classes_stand_in_the_architecture():
    architecture = small.gpt2_config()
    configure(architecture, CLASSES_HEADS)
    assert architecture.num_labels == 2
    assert architecture.id2label == {0: "no", 1: "yes"}
    assert architecture.label2id == {"no": 0, "yes": 1}
    assert architecture.pad_token_id == architecture.eos_token_id


def test_a_score_is_one_output():
    architecture = small.bert_config()
    configure(architecture, Head(kind=CLASSIFIER))
    model = fresh_model(architecture, Head(kind=CLASSIFIER), None)
    assert model(torch.tensor([[1, 2]])).logits.shape == (1, 1)


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
    configure(architecture, CLASSES_HEADS)
    model = fresh_model(architecture, CLASSES_HEADS, pooling)
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


def test_a_checkpoint_that_names_other_weights_is_refused(tmp_path: Path) -> None:
    """Transformers reads them in the place of those whose digest is known."""
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gpt2", "transformers_weights": "other.safetensors"})
    )
    with rejects("model.path", str(tmp_path)):
        read_architecture(ModelConfig(name="x", path=str(tmp_path)))
