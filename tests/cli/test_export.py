"""``dpft export`` on runs of the tiny model."""

import fcntl
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from dpft.commands.ledger_account import saved_run
from dpft.commands.task_model import trained_model_of_run
from tests.stories.tiny import TRAINING, Workspace, make_workspace

QUICK = ("train.steps=1", "task.max_length=16", "eval.enabled=false")
PRIVATE = (*TRAINING, *QUICK, "privacy.noise_multiplier=1", "train.learning_rate=0.1")
RUNS = {
    "full": ("method=full",),
    "lora": ("method=lora", "method.train_biases=true"),
    "random": ("method=lora", "model.init=random"),
    "prefix": ("method=prefix", "method.length=3", "method.hidden=4"),
    "adapter": ("method=adapter", "method.bottleneck=4"),
    "rgp": ("method=rgp",),
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with finished runs of full and lora; ``trained`` makes others of ``RUNS``."""
    workspace = make_workspace(tmp_path_factory.mktemp("export"))
    for name in ("full", "lora"):
        trained(workspace, name)
    return workspace


def trained(workspace: Workspace, name: str) -> str:
    """Return a name of ``RUNS`` once there is that run."""
    if not (workspace.root / name).exists():
        workspace.finished(*PRIVATE, *RUNS[name], f"hydra.run.dir={name}")
    return name


@pytest.fixture(autouse=True)
def in_the_workspace(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths in a run's configuration are relative to the folder it ran in."""
    monkeypatch.chdir(workspace.root)


def export(workspace: Workspace, *arguments: str) -> Path:
    """Run the command, which must succeed and write nothing but its folder; return that."""
    outcome = workspace.run("export", *arguments, "base_model=acme/tiny")
    assert outcome.code == 0, outcome.err
    assert outcome.out == ""
    assert outcome.err.startswith("INFO: model: ")
    target = workspace.root / outcome.err.removeprefix("INFO: model: ").strip()
    assert all(path.is_relative_to(target) or target.is_relative_to(path) for path in outcome.new)
    assert not any("private" in path.name for path in outcome.new)
    return target


@torch.no_grad()
def logits(model: PreTrainedModel) -> Tensor:
    ids = torch.tensor([[5, 7, 11, 13, 17], [3, 1, 4, 1, 5]])
    return model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids)).logits


def run_model(folder: str) -> PreTrainedModel:
    """Return a run's model as ``dpft eval`` loads it."""
    config = saved_run(folder)
    trained_model = trained_model_of_run(Path(folder), config)
    return trained_model.load(trained_model.head(config.task))


def test_a_merged_lora_run_is_a_plain_model_with_the_adapters_logits(workspace: Workspace) -> None:
    target = export(workspace, "run=lora", "merge=true", "to=merged")
    expected = logits(run_model("lora"))
    assert torch.allclose(logits(AutoModelForCausalLM.from_pretrained(target)), expected, atol=1e-5)
    base = logits(AutoModelForCausalLM.from_pretrained("model"))
    assert not torch.allclose(base, expected, atol=1e-2)
    assert AutoTokenizer.from_pretrained(target)("a pub")["input_ids"]
    names = {path.name for path in target.iterdir()}
    assert {"config.json", "model.safetensors", "privacy.json", "tokenizer.json"} <= names
    assert not any("adapter" in name for name in names)


def test_an_unmerged_lora_run_is_the_folder_that_peft_loads(workspace: Workspace) -> None:
    target = export(workspace, "run=lora")
    assert target == workspace.root / "lora" / "export"
    assert {path.name for path in target.iterdir()} == {
        "README.md", "adapter_config.json", "adapter_model.safetensors", "generation_config.json",
        "ledger.jsonl",
        "privacy.json", "tensors.json", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    base = AutoModelForCausalLM.from_pretrained("model")
    loaded = PeftModel.from_pretrained(base, target)
    assert torch.equal(logits(loaded), logits(run_model("lora")))
    settings = json.loads((target / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == "acme/tiny"


def test_an_exported_adapter_of_a_random_base_has_the_base_with_it(workspace: Workspace) -> None:
    expected = logits(run_model(trained(workspace, "random")))
    target = export(workspace, "run=random", "to=handed/on")
    config = json.loads((target / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] is None
    base = AutoModelForCausalLM.from_pretrained(target / "base")
    assert torch.equal(logits(PeftModel.from_pretrained(base, target)), expected)
    assert 'from_pretrained(f"{folder}/base")' in (target / "README.md").read_text()


@pytest.mark.parametrize("run", ("lora", "random"))
def test_an_adapters_files_name_no_path_that_the_user_did_not_give(
    workspace: Workspace, run: str
) -> None:
    paths = list((workspace.root / trained(workspace, run) / "model").rglob("*"))
    assert paths
    for path in paths:
        assert path.is_dir() or str(workspace.root).encode() not in path.read_bytes(), path


@pytest.mark.parametrize("merge", ["true", "false"])
@pytest.mark.parametrize("run", ("full", "rgp"))
def test_a_run_that_trained_the_whole_model_is_handed_on_as_it_was_saved(
    workspace: Workspace, run: str, merge: str
) -> None:
    target = export(
        workspace, f"run={trained(workspace, run)}", f"merge={merge}", f"to={run}-{merge}"
    )
    exported = load_file(target / "model.safetensors")
    saved = load_file(workspace.root / run / "model" / "model.safetensors")
    assert set(exported) == set(saved)
    assert all(torch.equal(exported[name], saved[name]) for name in saved)
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(target)), logits(run_model(run)))


def test_the_record_of_what_the_model_guarantees_goes_along(workspace: Workspace) -> None:
    for merge in ("true", "false"):
        target = export(workspace, "run=lora", f"merge={merge}", f"to=record-{merge}")
        for name in ("privacy.json", "ledger.jsonl"):
            assert (target / name).read_bytes() == (workspace.root / "lora" / name).read_bytes()


@pytest.mark.parametrize("run", ("prefix", "adapter"))
def test_a_method_whose_weights_cannot_be_merged_is_refused(workspace: Workspace, run: str) -> None:
    trained(workspace, run)
    sentence = workspace.refusal("export", f"run={run}", "merge=true", "to=new/folder")
    assert f"method={run}" in sentence and "merge=false" in sentence


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["run=nowhere"], ["run", "nowhere"]),
        (["run=data"], ["data", "config.yaml"]),
        ([], ["run"]),
        (["run=full", "to=data"], ["to", "data"]),
        (["run=lora", "to=new"], ["base_model=USER/NAME", "merge=true"]),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    workspace: Workspace, arguments: list[str], parts: list[str]
) -> None:
    sentence = workspace.refusal("export", *arguments)
    assert [part for part in parts if part not in sentence] == [], sentence


def test_a_run_that_has_not_ended_is_refused(workspace: Workspace) -> None:
    shutil.copytree("full", "cut")
    lines = Path("full/ledger.jsonl").read_text().splitlines(keepends=True)
    Path("cut/ledger.jsonl").write_text("".join(lines[:-1]))
    assert "dpft train resume=cut" in workspace.refusal("export", "run=cut")


def test_a_run_that_another_process_writes_is_refused(workspace: Workspace) -> None:
    descriptor = os.open("full/private/lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    sentence = workspace.refusal("export", "run=full", "to=busy")
    os.close(descriptor)
    assert sentence.startswith("full ")
