from pathlib import Path

import pytest
from huggingface_hub.errors import GatedRepoError

from dpft.config.load import from_values
from dpft.models import source
from dpft.models.source import ModelConfig, loading_errors
from tests.rejections import rejects


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"hub_name": "a/b", "init": "zero"}, "init"),
        ({}, "model"),
        ({"hub_name": "a/b", "pooling": "max"}, "pooling"),
    ],
)
def test_a_bad_setting_is_refused_by_its_key(settings, key):
    with rejects(key):
        from_values({"name": "x"} | settings, ModelConfig)


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


@pytest.mark.parametrize("error", [ValueError("a"), ImportError("a")])
def test_an_error_of_a_library_is_an_input_error_with_the_source(tmp_path, error):
    with rejects("model.path", str(tmp_path)), loading_errors(local(tmp_path), "classifier"):
        raise error


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
    with rejects("model.path", str(tmp_path)):
        check(local(tmp_path), tmp_path)
    (tmp_path / missing).write_text("{}")
    check(local(tmp_path), tmp_path)
    if missing == "model.safetensors":
        (tmp_path / "adapter_config.json").touch()
        with rejects("model.path", str(tmp_path)):
            check(local(tmp_path), tmp_path)


@pytest.mark.parametrize("is_file", [True, False])
def test_a_gguf_file_is_refused_with_the_way_to_convert_it(tmp_path: Path, is_file: bool) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    place = file if is_file else tmp_path
    with rejects("model.path", str(place)) as faults:
        source.check_folder(local(place), place)
    assert "gguf_file='model.gguf'" in faults[0].message


def test_a_gguf_file_beside_config_json_or_safetensors_matters_only_to_weights(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.gguf").touch()
    source.check_folder(local(tmp_path), tmp_path)
    with rejects("model.path", str(tmp_path)) as faults:
        source.check_weight_files(local(tmp_path), tmp_path)
    assert "gguf_file=" in faults[0].message
    (tmp_path / "model.safetensors").touch()
    source.check_weight_files(local(tmp_path), tmp_path)


def test_a_gated_model_names_the_page_of_its_license_and_the_login() -> None:
    name = "meta-llama/Llama-3.2-1B"
    with (
        rejects("model.hub_name", name) as faults,
        loading_errors(ModelConfig(name="x", hub_name=name)),
    ):
        try:
            raise GatedRepoError.__new__(GatedRepoError)  # its constructor wants a response
        except GatedRepoError as error:
            raise OSError("You are trying to access a gated repo.") from error
    assert f"https://huggingface.co/{name}" in faults[0].message
    assert faults[0].hint == "hf auth login"
