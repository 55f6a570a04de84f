"""Adapters over quantized weights from the command line: train, resume, score, write, export."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, LlamaForCausalLM

from dpft.commands.finished_run import open_run
from dpft.run_folder import MODEL
from tests.stories.test_resume import RUN, broken, files
from tests.stories.tiny import Workspace, make_workspace

BASE = (
    "model.path=llama", "model.quantization=nf4", "method=lora",
    "method.targets=[q_proj,v_proj,down_proj]", "train.learning_rate=0.05",
)  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with a Llama and a finished run ``whole`` over its weights in four bits."""
    made = make_workspace(tmp_path_factory.mktemp("quantized"))
    own = GPT2Config.from_pretrained(made.root / "model")
    config = LlamaConfig(
        vocab_size=own.vocab_size, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=128, eos_token_id=own.eos_token_id,
        bos_token_id=own.eos_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(made.root / "llama")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (made.root / "llama" / file).write_bytes((made.root / "model" / file).read_bytes())
    outcome = made.run("train", *RUN, *BASE, "hydra.run.dir=whole")
    assert outcome.code == 0, outcome.err
    return made


def test_an_interrupted_run_goes_on_to_the_same_files(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert broken(workspace, monkeypatch, "cut", KeyboardInterrupt(), *BASE).code == 130
    resumed = workspace.run("train", "resume=cut")
    assert resumed.code == 0, resumed.err
    whole, cut = (files(workspace.root / name) for name in ("whole", "cut"))
    assert whole == cut and f"{MODEL}/adapter_model.safetensors" in whole


def test_a_base_that_changed_meanwhile_is_seen_by_its_quantized_bits(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(workspace, monkeypatch, "moved", KeyboardInterrupt(), *BASE)
    file = workspace.root / "llama" / "model.safetensors"
    before, weights = file.read_bytes(), load_file(file)
    # The codes are in the checkpoint, and their scales are not.
    weights["model.layers.0.mlp.up_proj.weight"] *= 2
    save_file(weights, file, metadata={"format": "pt"})
    refused = workspace.run("train", "resume=moved")
    file.write_bytes(before)
    assert refused.code == 3 and "up_proj.weight.nested_absmax differs" in refused.err
    assert workspace.run("train", "resume=moved").code == 0


def test_a_run_is_scored_and_opened_over_the_same_quantized_base(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored = workspace.run("eval", "run=whole", "eval.limit=2", "output=json")
    assert scored.code == 0, scored.err
    monkeypatch.chdir(workspace.root)
    opened = open_run("whole").load_model()
    kinds = {type(module).__name__ for module in opened.modules()}
    assert "FrozenLinear4bit" in kinds


def outputs(model: Callable[..., torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(10, 30)[None]).logits


def test_a_merged_export_writes_what_the_run_computes(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace.root)
    done = workspace.run("export", "run=whole", "merge=true")
    assert done.code == 0, done.err
    assert "exporting the base model's quantized weights (nf4) in float32" in done.err
    exported = AutoModelForCausalLM.from_pretrained(workspace.root / "whole" / "export")
    trained = outputs(open_run(workspace.root / "whole").load_model())
    base = outputs(AutoModelForCausalLM.from_pretrained(workspace.root / "llama"))
    off = (outputs(exported.eval()) - trained).norm()
    assert off < 1e-5 * trained.norm() < (trained - base).norm()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["method=full"], "got method=full. Try: model.quantization=none"),
        (["model.init=random"], "model.quantization=nf4 needs model.init=pretrained, got random"),
    ],
)
def test_what_cannot_be_quantized_is_refused(workspace: Workspace, words, sentence: str) -> None:
    given = [word for word in BASE if not word.startswith("method")]
    assert sentence in workspace.refusal("train", *RUN, *given, *words)


def test_the_folder_of_an_adapter_names_its_base(workspace: Workspace) -> None:
    assert not (workspace.root / "whole" / MODEL / "base").exists()
    assert Path(workspace.root / "whole" / MODEL / "adapter_config.json").exists()
