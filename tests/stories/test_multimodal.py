"""Multimodal checkpoints from the command line, on texts: every command, and what it leaves."""

import json
from pathlib import Path

import pytest
import sklearn  # noqa: F401  # sets environment variables once; a run must set none
import torch
import transformers
from peft import AutoPeftModelForCausalLM
from safetensors.torch import load_file
from transformers import AutoTokenizer

from tests.models import multimodal
from tests.stories.tiny import Workspace

pytestmark = pytest.mark.slow

IMAGES = ("vision", "visual", "projector", "connector", "audio", "merger")
QUICK = (
    "train.steps=2", "train.expected_batch_size=8", "privacy.noise_multiplier=1",
    "privacy.accountant=rdp", "train.learning_rate=0.1",
)  # fmt: skip
TEXTS = (
    "task=custom", "task.data_dir=texts", 'task.prompt="{place}:"', 'task.target=" {text}"',
    "task.max_length=24", "task.metrics=[perplexity]", "eval.split_is_public=true",
)  # fmt: skip
LABELS = (
    "task=custom", "task.data_dir=labels", 'task.text="{text}"', "task.label=answer",
    "task.labels=[bad,good]", "task.max_length=16", "eval.enabled=false",
)  # fmt: skip
FAMILIES = (
    "llava", "gemma3", "mistral3", "smolvlm", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "internvl",
    "lfm2_vl", "qwen2_audio",
)  # fmt: skip
LAYERS = {"qwen2_audio": "[q_proj,v_proj]", "qwen3_5": "[q_proj,in_proj_qkv]"}


def rows(folder: Path, *rows: dict[str, str]) -> None:
    folder.mkdir()
    for split, count in (("train", 32), ("validation", 4), ("test", 4)):
        lines = [json.dumps({k: v.format(split, at) for k, v in rows[at % len(rows)].items()})
                 for at in range(count)]  # fmt: skip
        (folder / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture(scope="module", params=FAMILIES)
def workspace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    root = tmp_path_factory.mktemp(request.param)
    multimodal.save(request.param, root / "model")
    rows(root / "texts", {"place": "{0} {1}", "text": "Place {1} is a pub."})
    good = {"text": "{0} {1} was great", "answer": "good"}
    rows(root / "labels", good, {"text": "{0} {1} was dull", "answer": "bad"})
    (root / "prompts.jsonl").write_text('{"place": "An inn", "text": ""}\n')
    return request.param, Workspace(root)


def succeed(workspace: Workspace, *arguments: str) -> None:
    outcome = workspace.run(*arguments)
    assert outcome.code == 0, outcome.err


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def load(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    kind = getattr(transformers, config["architectures"][0])
    _, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    AutoTokenizer.from_pretrained(folder)


def test_full_training_generation_and_export_leave_the_image_layers_as_they_were(workspace) -> None:
    family, here = workspace
    succeed(here, "train", *TEXTS, *QUICK, f"model.path={here.root}/model", "hydra.run.dir=run")
    succeed(here, "eval", "run=run")
    succeed(here, "generate", "run=run", "prompts=prompts.jsonl", "to=texts.jsonl",
            "decode.max_new_tokens=3")  # fmt: skip
    succeed(here, "export", "run=run", "to=exported", "license=mit")
    load(here.root / "exported")
    before, after = weights(here.root / "model"), weights(here.root / "exported")
    changed = {name for name in before if name in after and not before[name].equal(after[name])}
    assert changed
    assert not [name for name in changed if any(word in name for word in IMAGES)], family


def test_an_adapter_loads_on_the_multimodal_base_and_merges(workspace) -> None:
    family, here = workspace
    targets = f"method.targets={LAYERS.get(family, '[q_proj,v_proj]')}"
    settings = ("method=lora", targets, "eval.enabled=false", f"model.path={here.root}/model")
    succeed(here, "train", *TEXTS, *QUICK, *settings, "hydra.run.dir=lora")
    adapted = AutoPeftModelForCausalLM.from_pretrained(here.root / "lora" / "model")
    names = [name for name, _ in adapted.named_parameters() if "lora_" in name]
    assert names
    assert not [name for name in names if any(word in name for word in IMAGES)]
    succeed(here, "export", "run=lora", "to=merged", "merge=true", "license=mit")
    load(here.root / "merged")


def test_a_classifier_trains_and_is_evaluated(workspace) -> None:
    _, here = workspace
    succeed(
        here, "train", *LABELS, *QUICK, f"model.path={here.root}/model", "hydra.run.dir=labeled"
    )
    succeed(here, "eval", "run=labeled", "eval.split_is_public=true")
