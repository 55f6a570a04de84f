from pathlib import Path

import pytest

from dpft.errors import InputError
from dpft.models import source
from dpft.models.source import ModelConfig, loading_errors
from tests.refused import refusal


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"hub_name": "a/b", "init": "zero"}, "init"),
        ({}, "model.path"),
        ({"hub_name": "a/b", "pooling": "max"}, "pooling"),
    ],
)
def test_a_bad_setting_is_refused_by_its_key(settings, key):
    assert key in refusal(ModelConfig, name="x", **settings)


def test_the_local_folder_wins_over_the_embedded_model_and_the_hub():
    config = ModelConfig(name="x", path="here", embedded=True, hub_name="a/b")
    assert config.folder == Path("here")
    assert ModelConfig(name="x", embedded=True, hub_name="a/b").folder == source.EMBEDDED_MODEL
    assert ModelConfig(name="x", hub_name="a/b").folder is None


def local(folder: Path) -> ModelConfig:
    return ModelConfig(name="x", path=str(folder))


def test_a_source_names_folder_or_hub_and_never_runs_code(monkeypatch):
    monkeypatch.setattr(source, "hub_is_reachable", lambda: True)
    assert source.source(ModelConfig(name="x", path="here")) == {
        "pretrained_model_name_or_path": "here",
        "local_files_only": True,
        "trust_remote_code": False,
    }
    hub = source.source(ModelConfig(name="x", hub_name="a/b"))
    assert hub == {
        "pretrained_model_name_or_path": "a/b",
        "revision": "main",
        "local_files_only": False,
        "trust_remote_code": False,
    }


def test_what_a_library_raises_becomes_one_sentence_that_names_the_wanted_model(tmp_path):
    with pytest.raises(InputError) as caught, loading_errors(local(tmp_path), "classifier"):
        raise ValueError("no such head.\nmany lines")
    sentence = str(caught.value)
    assert sentence.startswith(f"model.path={tmp_path} could not be loaded as a classifier")
    assert "(no such head)" in sentence and "\n" not in sentence


def test_a_quantized_checkpoint_names_the_folder_what_it_asks_for_and_the_way_out(tmp_path):
    with pytest.raises(InputError) as caught, loading_errors(local(tmp_path), "classifier"):
        raise ImportError("4-bit quantization requires bitsandbytes: `pip install bitsandbytes`")
    assert str(caught.value) == (
        f"model.path={tmp_path} could not be loaded as a classifier (4-bit quantization requires"
        " bitsandbytes: `pip install bitsandbytes`); install what it asks for, or give a checkpoint"
        " that does without: of a quantized one (quantization_config in its config.json), the model"
        " before quantization."
    )


def test_a_refusal_of_our_own_passes_as_it_is(tmp_path):
    with pytest.raises(InputError, match="^ours$"), loading_errors(local(tmp_path)):
        raise InputError("ours")


def test_a_bug_is_not_hidden(tmp_path):
    with pytest.raises(KeyError), loading_errors(local(tmp_path)):
        raise KeyError("a bug")


@pytest.mark.parametrize(
    ("check", "missing"),
    [
        (source.check_folder, "config.json"),
        (source.check_weight_files, "model.safetensors"),
        (source.check_tokenizer_files, "tokenizer.json"),
    ],
)
def test_an_incomplete_folder_is_refused_by_what_it_lacks(tmp_path, check, missing):
    assert missing in refusal(check, local(tmp_path), tmp_path)
    (tmp_path / missing).write_text("{}")
    check(local(tmp_path), tmp_path)


def test_an_adapter_beside_a_model_is_refused(tmp_path):
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "adapter_config.json").touch()
    sentence = refusal(source.check_weight_files, local(tmp_path), tmp_path)
    assert "holds an adapter (adapter_config.json) beside the model" in sentence
