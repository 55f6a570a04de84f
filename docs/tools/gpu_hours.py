"""How long a recipe would train on one GPU, by the operations that `dpft plan` counts.

Run: python -m docs.tools.gpu_hours li2022_e2e li2022_sst2 …

Hours are steps x expected batch x tokens of a record x operations of a token, over ``RATE``. A text
is as long as a plan takes it to be; an image has 197 tokens, as many as a transformer has patches.
Evaluation, which writes texts by beam search, is left out.
"""

import shlex
import sys
from typing import Any

import torch
import transformers
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from dpft.config.composing import register_resolver
from dpft.config.load import config_directory, load
from dpft.config.schema import POLYMORPHIC, TrainCommand
from dpft.errors import InputError
from dpft.estimates.step_time import model_shapes, operations_per_token
from dpft.runs.configuring import without_recipes_promise

RATE = 2e13
"""Operations a second: what an A100 is rated at in float32, 19.5e12."""
PATCHES = 197
_LARGE = {
    **{"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16},
    **{"intermediate_size": 4096},
}
_ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
_CAUSAL, _MASKED = "AutoModelForCausalLM", "AutoModelForMaskedLM"
_IMAGES = "AutoModelForImageClassification"
SHAPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", _CAUSAL, {}),
    "gpt2-medium": ("GPT2Config", _CAUSAL, {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
    "gpt2-large": ("GPT2Config", _CAUSAL, {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
    "roberta-base": ("RobertaConfig", _MASKED, _ROBERTA),
    "roberta-large": ("RobertaConfig", _MASKED, {**_ROBERTA, **_LARGE}),
    "vit-base": ("ViTConfig", _IMAGES, {}),
    "vit-large": ("ViTConfig", _IMAGES, _LARGE),
}
"""What a model's config.json says, by its name in conf/model; T5's sizes are in its recipes."""


def hours(recipe: str, *words: str) -> float:
    """Returns hours of one run of a recipe, changed by words of the command line."""
    overrides = _words(recipe, words)
    register_resolver()
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        config = compose("train", overrides=overrides)
    private = config.privacy.name != "none"
    with torch.device("meta"):
        model = _model(config)
    plain = without_recipes_promise(config, overrides)
    loaded = load(plain, TrainCommand, polymorphic=POLYMORPHIC)
    prepared = loaded.method.prepare(model)
    length = PATCHES if "image_size" in config.task else loaded.task.typical
    operations = operations_per_token(model_shapes(prepared), private=private)
    return _records(config) * length * operations / RATE / 3600


def _words(recipe: str, words: tuple[str, ...]) -> list[str]:
    """Returns the words of the command in a recipe's head, and what replaces some of them."""
    head = (config_directory() / f"experiment/{recipe}.yaml").read_text().splitlines()[1]
    given = {word.partition("=")[0] for word in words}
    own = [
        word
        for word in shlex.split(head.rpartition("dpft train ")[2])
        if not word.startswith("--") and not word.endswith(("=DIR", "TIME", "TIME/model"))
    ]
    return [*(word for word in own if word.partition("=")[0] not in given), *words]


def _model(config: DictConfig) -> "transformers.PreTrainedModel":
    if config.model.name in SHAPES:
        shape, auto, sizes = SHAPES[config.model.name]
        return getattr(transformers, auto).from_config(getattr(transformers, shape)(**sizes))
    values = dict(OmegaConf.to_container(config.model.architecture))
    if values.pop("model_type", None) != "t5":
        raise InputError(f"the shapes of model={config.model.name} must be in SHAPES, got none.")
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**values))


def _records(config: DictConfig) -> float:
    """Returns how many records the steps draw, by expectation."""
    train = config.train
    if train.steps is not None:
        return float(train.steps * train.expected_batch_size)
    return float(train.epochs * config.task.num_train_examples)


def main(recipes: list[str]) -> int:
    """Prints the hours of each recipe."""
    for recipe in recipes:
        print(f"{recipe:<36}{hours(recipe):.3g}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
