"""Multimodal checkpoints on texts: which class loads, what trains, and which are rejected."""

import copy
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen3_5ForCausalLM,
    Qwen3_5TextModel,
)

from dpft.constants import CLASSIFIER, Head
from dpft.methods.base import METHODS
from dpft.models.architecture import padding_id, read_architecture
from dpft.models.loading import load_model, load_tokenizer, new_names
from dpft.models.source import MEAN, ModelConfig
from dpft.non_text_modules import idle_modules
from tests.models import multimodal
from tests.rejections import rejects
from tests.slowness import slow

ADDED = re.compile(r"vision.*(lora_|\.adapter\.|carrier|left|right)")
CLASSES = Head(kind=CLASSIFIER, labels=("no", "yes"))


def local(folder: Path):
    return read_architecture(ModelConfig(name="small", path=str(folder)))


@pytest.mark.slow
def test_a_text_only_class_takes_the_weights_of_a_multimodal_checkpoint(tmp_path: Path) -> None:
    architecture = local(multimodal.save("qwen3_5", tmp_path))
    assert new_names(architecture) == frozenset()
    loaded = load_model(architecture, seed=0)
    assert isinstance(loaded, Qwen3_5ForCausalLM)
    expected = AutoModelForCausalLM.from_pretrained(tmp_path)
    for name, parameter in expected.named_parameters():
        assert torch.equal(loaded.get_parameter(name), parameter), name


@pytest.mark.slow
def test_a_tokenizer_has_only_the_tokens_of_its_files(tmp_path: Path) -> None:
    architecture = local(multimodal.save("qwen3_5", tmp_path))
    words = Tokenizer(WordLevel({"a": 0, "<end>": 1}))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>").save_pretrained(tmp_path)
    rows = replace(architecture, read=copy.deepcopy(architecture.read))
    rows.read.get_text_config().vocab_size = 2
    assert len(AutoTokenizer.from_pretrained(tmp_path)) > 2  # of the class of Qwen3.5
    assert len(load_tokenizer(rows)) == 2


def test_a_checkpoint_without_a_head_is_rejected_though_its_keys_have_other_names(
    tmp_path: Path,
) -> None:
    sizes = multimodal.config("qwen3_5").text_config
    Qwen3_5TextModel(sizes).save_pretrained(tmp_path)
    with rejects("model.path", str(tmp_path)):
        new_names(local(tmp_path))


def test_padding_is_that_of_the_text_model() -> None:
    config = multimodal.config("smolvlm")
    config.pad_token_id, config.text_config.pad_token_id = 3, 5
    assert padding_id(config) == 5


@pytest.mark.slow
@pytest.mark.parametrize(("family", "new"), [("gemma3", {"score.weight"}), ("llava", None)])
def test_a_classifier_has_a_new_head_only(family, new, tmp_path: Path) -> None:
    architecture = local(multimodal.save(family, tmp_path))
    assert architecture.pooling == (MEAN if new is None else None)
    new = {"classifier.weight", "classifier.bias"} if new is None else new
    assert new_names(architecture, CLASSES) == new
    load_model(architecture, seed=0, head=CLASSES)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["kosmos-2", *slow(("blip-2",), ("mllama",))])
def test_a_model_that_needs_images_is_rejected_before_its_weights_are_read(
    family, tmp_path: Path
) -> None:
    config = multimodal.config(family)
    config.save_pretrained(tmp_path)
    architecture = local(tmp_path)
    for head in ((), (CLASSES,)):
        with rejects("model.path", str(tmp_path)):
            new_names(architecture, *head)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("full", {}),
        *slow(("norms", {}), ("top2", {"blocks": 1}), ("rgp", {"rank": 2})),
        ("two_phase", {"train_embeddings": True}),
        ("lora", {"targets": ("q_proj", "v_proj"), "train_biases": True}),
        ("adapter", {"targets": ("o_proj", "out_proj"), "bottleneck": 4}),
    ],
)
def test_no_method_trains_what_only_images_reach(method, settings) -> None:
    model = multimodal.model("llava")
    assert idle_modules(model) == ("model.vision_tower", "model.multi_modal_projector")
    maker = METHODS.named(method)(name=method, **settings)
    prepared = maker.prepare(model)
    maker.phases(4, lambda _: 2)
    steps = (0, 3) if method == "two_phase" else (0,)
    for step in steps:
        maker.begin_step(prepared, step)
        trained = {name for name, p in prepared.named_parameters() if p.requires_grad}
        assert trained
        assert not [name for name in trained if "vision" in name or "projector" in name]
    assert not [name for name, _ in prepared.named_parameters() if ADDED.search(name)]
