import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoTokenizer,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from dpft.constants import CAUSAL, CLASSIFIER, MASKED, SEQ2SEQ, Head
from dpft.models.architecture import Architecture, PooledClassifier, read_architecture
from dpft.models.loading import (
    add_tokens,
    grow,
    language_head,
    load_model,
    load_tokenizer,
    meta_model,
    new_names,
    start_rows,
)
from dpft.models.source import EMBEDDED_MODEL, MEAN, ModelConfig, check_tokenizer_files
from tests.models import small
from tests.rejections import rejects
from tests.slowness import slow

VOCABULARY = 11


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A GPT-2 of a few hundred parameters with its tokenizer, as save_pretrained writes it."""
    architecture = GPT2Config(
        vocab_size=VOCABULARY, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=None
    )
    architecture.eos_token_id = 0
    GPT2LMHeadModel(architecture).save_pretrained(tmp_path)
    vocabulary = {"<end>": 0, **{letter: i for i, letter in enumerate("abcdefghij", start=1)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(tmp_path)
    return tmp_path


def local(folder: Path, **settings: object) -> Architecture:
    return read_architecture(ModelConfig(name="small", path=str(folder), **settings))


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in model.parameters()]


def equal(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


def test_a_folder_gives_its_own_weights(folder):
    model = load_model(local(folder), seed=0)
    saved = load_file(folder / "model.safetensors")
    assert torch.equal(model.transformer.wte.weight, saved["transformer.wte.weight"])


def test_a_half_precision_checkpoint_is_loaded_in_float32(folder):
    load_model(local(folder), seed=0).to(torch.bfloat16).save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    for init in ("pretrained", "random"):
        model = load_model(local(folder, init=init), seed=0)
        assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_a_random_initialization_follows_the_seed_and_leaves_the_global_generator_alone(folder):
    config = local(folder, init="random")
    before = torch.get_rng_state()
    one, same, other = (load_model(config, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert equal(one, same)
    assert not equal(one, other)


def test_a_random_initialization_needs_no_weights(folder):
    (folder / "model.safetensors").unlink()
    assert load_model(local(folder, init="random"), seed=0).config.vocab_size == VOCABULARY


def test_a_meta_model_counts_parameters_from_config_json_alone(folder):
    expected = load_model(local(folder), seed=0).num_parameters()
    for file in folder.iterdir():
        if file.name != "config.json":
            file.unlink()
    model = meta_model(local(folder))
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert sum(p.numel() for p in model.parameters()) == expected  # the tied head counts once


def test_gradient_checkpointing_is_switched_on_by_its_key(folder):
    assert not load_model(local(folder), seed=0).is_activation_checkpointing
    model = load_model(local(folder, gradient_checkpointing=True), seed=0)
    assert model.is_activation_checkpointing


def test_padding_is_the_end_of_text_token_where_the_tokenizer_has_none(folder):
    tokenizer = load_tokenizer(local(folder))
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 0


def test_a_special_token_without_a_row_in_the_model_is_read_as_text(folder):
    tokenizer = load_tokenizer(local(folder))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.save_pretrained(folder)
    assert len(AutoTokenizer.from_pretrained(folder)) == VOCABULARY + 1
    loaded = load_tokenizer(local(folder))
    assert len(loaded) == VOCABULARY
    assert max(loaded("<image>").input_ids, default=0) < VOCABULARY


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "nonsense"},
        *slow(({"model_type": "t5"},)),
        {"activation_function": "unheard"},
        {"n_layer": 2},
        {"vocab_size": VOCABULARY - 1},
    ],
)
def test_a_config_that_does_not_fit_the_checkpoint_is_rejected(folder, change):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with rejects("model.path", str(folder)):
        load_model(local(folder), seed=0)


@pytest.mark.parametrize("size", [None, 100])
def test_a_checkpoint_without_whole_safetensors_is_rejected(folder, size):
    file = folder / "model.safetensors"
    if size is None:
        file.rename(folder / "pytorch_model.bin")
    else:
        file.write_bytes(file.read_bytes()[:size])
    with rejects("model.path", str(folder)):
        load_model(local(folder), seed=0)


def test_a_tokenizer_that_is_missing_or_has_a_token_without_a_row_is_rejected(folder):
    tokenizer = load_tokenizer(local(folder))
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    tokenizer.save_pretrained(folder)
    with rejects("model.path", str(folder)):
        load_tokenizer(local(folder))
    (folder / "tokenizer.json").unlink()
    with rejects("model.path", str(folder)):
        load_tokenizer(local(folder))


@pytest.mark.parametrize("name", ["spm.model", "sentencepiece.bpe.model"])
def test_a_folder_may_hold_only_a_sentencepiece_model(tmp_path, name):
    (tmp_path / name).touch()
    check_tokenizer_files(ModelConfig(name="small", path=str(tmp_path)), tmp_path)


CLASSES = Head(kind=CLASSIFIER, labels=("no", "yes"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"), [("t5", SEQ2SEQ), *slow(("bert", MASKED), ("gpt2", CAUSAL))]
)
def test_every_kind_of_language_model_is_loaded_whole(tmp_path, name, kind):
    config = local(small.save(name, tmp_path))
    assert language_head(config) == Head(kind=kind)
    assert new_names(config, Head(kind=kind)) == frozenset()
    model = load_model(config, seed=0, head=Head(kind=kind))
    assert equal(model, small.language_model(name))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "pooling"),
    [("gpt2", MEAN), *slow(("bert", None), ("bert", MEAN), ("gpt2", None))],
)
def test_a_new_head_follows_the_seed_and_the_rest_is_the_checkpoints(tmp_path, name, pooling):
    config = local(small.save(name, tmp_path), pooling=pooling)
    new = new_names(config, CLASSES)
    one, same, other = (load_model(config, seed=seed, head=CLASSES) for seed in (1, 1, 2))
    assert equal(one, same)
    moved = {
        parameter
        for (parameter, a), b in zip(one.named_parameters(), weights(other), strict=True)
        if not torch.equal(a, b)
    }
    assert moved == {parameter for parameter in new if not parameter.endswith("bias")}
    base = load_file(tmp_path / "model.safetensors")
    kept = {name: weight for name, weight in one.named_parameters() if name not in new}
    assert kept
    for name, weight in kept.items():
        bare = name.removeprefix("backbone.")
        (found,) = [v for n, v in base.items() if bare in (n, n.partition(".")[2])]
        assert torch.equal(weight, found), name


@pytest.mark.slow
@pytest.mark.parametrize("pooling", [MEAN, *slow((None,))])
def test_a_saved_classifier_has_no_new_parameters(tmp_path, pooling):
    first = local(small.save("bert", tmp_path / "base"), pooling=pooling)
    model = load_model(first, seed=1, head=CLASSES)
    model.save_pretrained(tmp_path / "saved")
    again = local(tmp_path / "saved")
    assert new_names(again, CLASSES) == frozenset()
    loaded = load_model(again, seed=2, head=CLASSES)
    assert isinstance(loaded, PooledClassifier) == (pooling == MEAN)
    assert equal(loaded, model)


@pytest.mark.slow
def test_an_encoder_without_language_head_is_refused_for_label_words_and_serves_classes(tmp_path):
    BertModel(small.bert_config()).save_pretrained(tmp_path)
    with rejects("model.path", str(tmp_path)) as faults:
        load_model(local(tmp_path), seed=0, head=Head(kind=MASKED))
    assert faults[0].hint == "task.objective=cls"
    assert load_model(local(tmp_path), seed=0, head=CLASSES).config.num_labels == 2
    fresh = load_model(local(tmp_path, init="random"), seed=0, head=Head(kind=MASKED))
    assert fresh.config.vocab_size == 48


@pytest.mark.slow
def test_a_classifier_of_other_classes_is_refused(tmp_path):
    head = Head(kind=CLASSIFIER, labels=("a", "b", "c"))
    load_model(local(small.save("bert", tmp_path)), seed=0, head=head).save_pretrained(tmp_path)
    with rejects("model.path", str(tmp_path)):
        load_model(local(tmp_path), seed=0, head=CLASSES)


def test_a_tokenizer_of_a_masked_model_needs_a_mask_and_no_end(tmp_path):
    small.save("bert", tmp_path)
    assert load_tokenizer(local(tmp_path), kind=MASKED).mask_token == "[MASK]"
    small.blank_words(closes=True).save_pretrained(tmp_path)
    with rejects("model.path", str(tmp_path)):
        load_tokenizer(local(tmp_path), kind=MASKED)


def test_the_embedded_model_has_no_address_outside_this_installation() -> None:
    embedded = read_architecture(ModelConfig(name="tiny", embedded=True))
    assert load_model(embedded, seed=0).name_or_path == ""


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


def test_a_model_without_storage_grows(tokenizer):
    with torch.device("meta"):
        model = GPT2LMHeadModel(small.gpt2_config())
    before = sum(p.numel() for p in model.parameters())
    grow(model, 51)
    assert sum(p.numel() for p in model.parameters()) == before + 3 * 16
    assert {p.device.type for p in model.parameters()} == {"meta"}
