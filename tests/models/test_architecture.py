import json
import time
from pathlib import Path

import pytest
import torch

from dpft.errors import InputError
from dpft.kinds import CLASSIFIER, Head
from dpft.models import source
from dpft.models.architecture import Architecture, read_architecture
from dpft.models.loading import load_model, meta_model
from dpft.models.source import MEAN, ModelConfig
from tests.models import small

CLASSES = Head(kind=CLASSIFIER, labels=("no", "yes", "maybe"))


def architecture(folder: Path, **settings: object) -> Architecture:
    return read_architecture(ModelConfig(name="small", path=str(folder), **settings))


def refusal(model: ModelConfig) -> str:
    with pytest.raises(InputError) as caught:
        read_architecture(model)
    return str(caught.value)


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


def test_the_vocabulary_has_a_size_and_a_saved_pooler_is_known_again(tmp_path: Path) -> None:
    bare = architecture(small.save("bert", tmp_path / "base"))
    assert (bare.vocabulary_size, bare.pooling, bare.is_pooled) == (48, None, False)
    chosen = architecture(tmp_path / "base", pooling=MEAN)
    assert (chosen.pooling, chosen.is_pooled) == (MEAN, False)
    load_model(chosen, seed=0, head=CLASSES).save_pretrained(tmp_path / "saved")
    saved = architecture(tmp_path / "saved")
    assert (saved.pooling, saved.is_pooled) == (MEAN, True)


def test_a_missing_folder_names_the_key_and_the_value(tmp_path: Path) -> None:
    nowhere = ModelConfig(name="small", path=str(tmp_path / "no"))
    assert f"model.path={tmp_path / 'no'} must be a folder" in refusal(nowhere)


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    assert "config.json" in refusal(ModelConfig(name="small", path=str(tmp_path)))


def test_trust_rule_11_code_in_a_checkpoint_is_not_executed(tmp_path: Path) -> None:
    folder = small.save("gpt2", tmp_path / "model")
    values = json.loads((folder / "config.json").read_text())
    values |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    refusal(ModelConfig(name="small", path=str(folder)))
    assert not (tmp_path / "executed").exists()


def test_an_unreachable_hub_is_said_at_once_with_the_ways_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source, "hub_is_reachable", lambda: False)
    start = time.perf_counter()
    text = refusal(ModelConfig(name="x", hub_name="nobody/nothing-of-the-kind"))
    assert time.perf_counter() - start < 5  # transformers retries for 23 seconds by itself
    assert "model.hub_name=nobody/nothing-of-the-kind" in text
    assert all(way in text for way in ("model.path", "task.data_dir", "model=tiny"))


def test_of_model_architecture_a_checkpoint_takes_its_dropout_alone(tmp_path: Path) -> None:
    folder = small.save("bert", tmp_path)
    wide = {"model_type": "bert", "hidden_size": 4096, "hidden_dropout_prob": 0.3}
    known = architecture(folder, architecture=wide)
    assert known.read.hidden_dropout_prob == 0.3
    assert known.read.hidden_size == architecture(folder).read.hidden_size
    loaded = load_model(known, seed=0, head=CLASSES)
    assert {m.p for m in loaded.modules() if isinstance(m, torch.nn.Dropout)} >= {0.3}
    said = refusal(ModelConfig(name="x", path=str(folder), architecture={"dropout_rate": 0.1}))
    assert said == (
        "model.architecture.dropout_rate must be a dropout rate of bert, which has"
        " attention_probs_dropout_prob, classifier_dropout, hidden_dropout_prob; drop it, or give"
        " one of those."
    )
