import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.embedded import build
from dpft.models.source import EMBEDDED_MODEL


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(EMBEDDED_MODEL, local_files_only=True)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(
        EMBEDDED_MODEL, local_files_only=True, dtype=torch.float32
    ).eval()


def test_the_folder_is_under_ten_megabytes():
    assert sum(f.stat().st_size for f in EMBEDDED_MODEL.rglob("*") if f.is_file()) < 10e6


def test_the_model_is_a_tied_gpt2_of_one_to_four_million_parameters(model):
    assert model.config.model_type == "gpt2"
    assert 1e6 <= model.num_parameters() <= 4e6
    assert model.lm_head.weight is model.transformer.wte.weight


def test_the_model_loads_in_float32_and_has_no_dropout(model):
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not any(m.p for m in model.modules() if isinstance(m, torch.nn.Dropout))


def test_the_weights_are_stored_as_safetensors_alone():
    stored = {f.name for f in EMBEDDED_MODEL.iterdir()}
    assert "model.safetensors" in stored
    assert not {name for name in stored if name.endswith((".bin", ".pt", ".pkl"))}


def test_end_of_text_begins_ends_and_pads(tokenizer, model):
    assert tokenizer.eos_token == tokenizer.bos_token == tokenizer.pad_token == build.END_OF_TEXT
    assert tokenizer.eos_token_id == model.config.eos_token_id == model.config.bos_token_id
    assert len(tokenizer) == model.config.vocab_size


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_the_tokenizer_round_trips_any_text(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_record_of_eight_fields_and_its_reference_fit_into_a_hundred_tokens(tokenizer):
    record = (
        "name : The Example Arms | Type : coffee shop | food : English | price : less than £20 | "
        "customer rating : 3 out of 5 | area : city center | family friendly : no | "
        "near : Tollgate Inn"
    )
    target = (
        "The Example Arms near Tollgate Inn is a coffee shop in the city center that serves "
        "English food for less than £20 and isn't family friendly."
    )
    assert len(tokenizer.encode(record)) + len(tokenizer.encode(target)) + 2 < 95


@pytest.mark.slow
@torch.no_grad()
def test_the_model_copies_names_it_has_never_seen(tokenizer, model):
    names = ("Salty Otter", "Ruby Kettle", "Hazel Fork", "The Ginger Teapot", "Brindlewood Corner")
    copied = 0
    for name in names:
        record = f"name : {name} | type : museum | price : cheap | near : Otter Street"
        prompt = tokenizer.encode(record) + tokenizer.encode("\n")
        ids = torch.tensor([prompt])
        written = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=60, do_sample=False
        )[0, len(prompt) :]
        copied += name in tokenizer.decode(written, skip_special_tokens=True)
    assert copied >= 4


def test_a_word_has_the_same_tokens_at_the_start_of_a_text_as_inside_one(tokenizer):
    assert tokenizer.encode("name Otter")[1:] == tokenizer.encode("Otter")
    assert len(tokenizer.encode("\n")) == 1


@pytest.mark.slow
def test_a_miniature_build_writes_a_folder_that_loads(tmp_path):
    threads = torch.get_num_threads()
    shape = {"width": 16, "layers": 2, "heads": 2, "vocabulary_size": 400}
    recipe = build.Recipe(steps=2, batch_size=4, tokenizer_passages=50, threads=threads, **shape)
    build.build(tmp_path / "first", recipe)
    build.build(tmp_path / "second", recipe)
    names = ("config.json", "model.safetensors", "tokenizer.json")
    for name in names:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    AutoModelForCausalLM.from_pretrained(tmp_path / "first", local_files_only=True)
    AutoTokenizer.from_pretrained(tmp_path / "first", local_files_only=True)


def test_the_shipped_folder_fits_the_shipped_recipe():
    recipe = build.Recipe()
    config = json.loads((EMBEDDED_MODEL / "config.json").read_text())
    shape = (config["n_embd"], config["n_layer"], config["n_head"], config["n_positions"])
    assert shape == (recipe.width, recipe.layers, recipe.heads, recipe.positions)
    with safe_open(EMBEDDED_MODEL / "model.safetensors", "pt") as weights:
        assert weights.get_tensor("transformer.wte.weight").shape == (
            recipe.vocabulary_size,
            recipe.width,
        )
