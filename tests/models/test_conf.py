"""conf/model says everything a user may set: Hydra refuses a key that its YAML lacks."""

from dataclasses import fields
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from dpft.models.loading import ModelConfig

FILES = sorted((Path(__file__).parents[2] / "conf" / "model").glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_yaml_holds_every_field_and_builds_the_configuration(file):
    values = OmegaConf.to_object(OmegaConf.load(file))
    assert set(values) == {field.name for field in fields(ModelConfig)}
    assert ModelConfig(**values).name == file.stem


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_yaml_opens_with_the_command_that_runs_it(file):
    assert f"model={file.stem} " in file.read_text().splitlines()[0]


def test_the_promised_models_are_there():
    names = {"gpt2", "gpt2-medium", "gpt2-large", "distilgpt2", "dialogpt-medium", "tiny"}
    assert names <= {file.stem for file in FILES}
