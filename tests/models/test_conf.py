"""conf/model says everything a user may set: Hydra refuses a key that its YAML lacks."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn
from transformers import (
    AlbertConfig,
    AutoModel,
    BertConfig,
    DebertaV2Config,
    GPT2Config,
    RobertaConfig,
    T5Config,
)
from transformers.pytorch_utils import Conv1D

from dpft.config.load import from_values
from dpft.models.source import ModelConfig

FILES = sorted((Path(__file__).parents[2] / "conf" / "model").glob("*.yaml"))
GIVEN = {"local": {"path": "folder"}, "t5-tiny": {"tokenizer": "folder"}}
"""What only the user can say."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_yaml_holds_every_field_and_builds_the_configuration(file):
    values = OmegaConf.to_object(OmegaConf.load(file))
    values |= GIVEN.get(file.stem, {})
    assert set(values) == set(ModelConfig.model_fields)
    assert from_values(values, ModelConfig).name == file.stem


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_yaml_opens_with_the_command_that_runs_it(file):
    assert f"model={file.stem} " in file.read_text().splitlines()[0]


def test_the_promised_models_are_there():
    names = {
        "gpt2", "gpt2-medium", "gpt2-large", "distilgpt2", "dialogpt-medium", "tiny",
        "bert-base", "bert-large", "roberta-base", "roberta-large", "distilroberta",
        "albert", "deberta-v3", "t5-small", "t5-base", "flan-t5-small", "flan-t5-base",
    }  # fmt: skip
    assert names <= {file.stem for file in FILES}


# A small instance of the architecture of each, by the beginning of its name.
SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 11}
GPT2 = GPT2Config(vocab_size=11, n_embd=8, n_layer=2, n_head=2)
ARCHITECTURES = {
    "bert": BertConfig(**SIZES, intermediate_size=8),
    "minilm": BertConfig(**SIZES, intermediate_size=8),
    "roberta": RobertaConfig(**SIZES, intermediate_size=8),
    "distilroberta": RobertaConfig(**SIZES, intermediate_size=8),
    "albert": AlbertConfig(**SIZES, intermediate_size=8, embedding_size=4),
    "deberta": DebertaV2Config(
        **SIZES, intermediate_size=8, relative_attention=True, pos_att_type=["p2c", "c2p"]
    ),
    "t5": T5Config(vocab_size=11, d_model=8, d_kv=4, d_ff=8, num_layers=2, num_heads=2),
    "flan": T5Config(
        vocab_size=11, d_model=8, d_kv=4, d_ff=8, num_layers=2, num_heads=2,
        feed_forward_proj="gated-gelu",
    ),
    "gpt2": GPT2,
    "distilgpt2": GPT2,
    "dialogpt": GPT2,
    "tiny": GPT2,
}  # fmt: skip


def states_its_architecture(file: Path) -> bool:
    """Whether test_image_conf or test_language_conf checks the modules, and not this file."""
    return bool(OmegaConf.load(file).architecture) and file.stem != "t5-tiny"


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if file.stem != "local" and not states_its_architecture(file)],
    ids=lambda file: file.stem,
)
def test_the_modules_that_lora_adapts_are_linear_ones_of_every_layer(file):
    config = from_values(
        OmegaConf.to_object(OmegaConf.load(file)) | GIVEN.get(file.stem, {}), ModelConfig
    )
    with torch.device("meta"):
        model = AutoModel.from_config(ARCHITECTURES[file.stem.partition("-")[0]])
    found = Counter(
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
    )
    # T5 has attention three times in two layers of each half; ALBERT's two share one
    expected = {"t5": 6, "flan": 6, "albert": 1}.get(file.stem.partition("-")[0], 2)
    assert config.lora_targets
    assert {target: found[target] for target in config.lora_targets} == dict.fromkeys(
        config.lora_targets, expected
    )
