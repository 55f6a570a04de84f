"""Received checkpoints: dpft loads no pickled weights and runs no code from a model's folder."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.guarantees.watched_runs import RUN
from tests.stories.tiny import Workspace, make_workspace

BAD_INPUT = 2
"""Exit code for input that is not supported."""


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return make_workspace(tmp_path)


def test_pickled_weights_are_rejected(workspace: Workspace) -> None:
    model = workspace.root / "model"
    weights = load_file(model / "model.safetensors")
    torch.save(weights, model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    outcome = workspace.run(*RUN, "hydra.run.dir=run")
    assert outcome.code == BAD_INPUT, outcome.err
    assert not (workspace.root / "run" / "ledger.jsonl").exists()


def test_code_in_a_models_folder_does_not_run(workspace: Workspace) -> None:
    model, trace = workspace.root / "model", workspace.root / "trace"
    config = json.loads((model / "config.json").read_text())
    names = {"AutoConfig": "custom.CustomConfig", "AutoModelForCausalLM": "custom.CustomModel"}
    config |= {"model_type": "custom", "auto_map": names}
    (model / "config.json").write_text(json.dumps(config))
    (model / "custom.py").write_text(
        "from transformers import GPT2Config, GPT2LMHeadModel\n"
        f"open({str(trace)!r}, 'w').close()\n"
        "class CustomConfig(GPT2Config):\n    model_type = 'custom'\n"
        "class CustomModel(GPT2LMHeadModel):\n    config_class = CustomConfig\n"
    )
    outcome = workspace.run(*RUN, "hydra.run.dir=run")
    assert outcome.code == BAD_INPUT, outcome.err
    assert not trace.exists()
