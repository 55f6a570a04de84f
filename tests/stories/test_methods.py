"""Every method from the command line, and what a user may get wrong about one."""

import functools
import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from dpft import open_run
from dpft.config.hydra_compose import compose
from dpft.config.load import load
from dpft.config.schema import TrainCommand
from dpft.errors import StateError
from dpft.methods.base import METHODS
from dpft.models.checkpoint_rows import base_digest
from dpft.models.source import ModelConfig
from tests.rejections import rejects
from tests.slowness import slow, slow_but
from tests.stories.tiny import EVALUATION, TRAINING, Workspace, make_workspace, own_entries

pytestmark = pytest.mark.slow

MAX_LENGTH = 24
QUICK = ("train.steps=2", f"task.max_length={MAX_LENGTH}")
PRIVATE = (*TRAINING, *QUICK, "privacy.noise_multiplier=1", "train.learning_rate=0.1")
SETTINGS: dict[str, tuple[str, ...]] = {
    "adapter": ("method.bottleneck=4",),
    "linear_probe": ("model.path=untied",),
    "prefix": ("method.length=3", "method.hidden=4"),
    "top2": ("method.blocks=1",),
    # of five steps an epoch: one step, then one of the biases
    "two_phase": ("method.full_epochs=0.2", "method.bitfit_learning_rate=0.2"),
}
"""What a method needs to fit the tiny model, where its defaults do not."""
EVALUATED = ("adapter", "compacter", "lora", "prefix", "prompt", "rgp", "two_phase")
"""Methods whose folder is not simply the model that was trained; the others spare the time."""

Train = Callable[[str], Path]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The tiny model, one whose head is not tied to its embeddings, and one without biases."""
    workspace = make_workspace(tmp_path_factory.mktemp("methods"))
    untied = GPT2Config.from_pretrained(workspace.root / "model", tie_word_embeddings=False)
    save_beside(workspace, "untied", GPT2LMHeadModel(untied))
    llama = LlamaConfig(
        vocab_size=untied.vocab_size, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=128, eos_token_id=untied.eos_token_id,
        bos_token_id=untied.eos_token_id,
    )  # fmt: skip
    save_beside(workspace, "llama", LlamaForCausalLM(llama))
    return workspace


def save_beside(workspace: Workspace, name: str, model: GPT2LMHeadModel | LlamaForCausalLM) -> None:
    """Save a model with the tiny model's tokenizer."""
    model.save_pretrained(workspace.root / name)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (workspace.root / name / file).write_bytes((workspace.root / "model" / file).read_bytes())


@pytest.fixture(scope="module")
def trained(workspace: Workspace) -> Train:
    """Return a function from a method to the folder of its finished run, one run a method."""

    @functools.cache
    def train(name: str) -> Path:
        return workspace.finished(*arguments_of(name), f"hydra.run.dir={name}")

    return train


def arguments_of(name: str) -> tuple[str, ...]:
    evaluation = EVALUATION if name in EVALUATED else ("eval.enabled=false",)
    return (*PRIVATE, *evaluation, f"method={name}", *SETTINGS.get(name, ()))


def scores_after(folder: Path) -> dict:
    """Return the scores of a run after fine-tuning."""
    entries = own_entries(folder)
    (metrics,) = [entry["metrics"] for entry in entries if entry["stage"] == "after"]
    return metrics


COUNTED = ("lora",)
"""A method that adds what it counts; make test-slow tries all."""


@pytest.mark.parametrize(
    "name",
    slow_but(COUNTED, METHODS.entries()),
)
def test_a_run_its_report_and_its_plan_agree_on_the_parameters(
    workspace: Workspace, trained: Train, name: str
) -> None:
    record = json.loads((trained(name) / "privacy.json").read_text())
    trainable, total = record["parameters"]["trainable"], record["parameters"]["total"]
    assert 0 < trainable <= total
    assert record["parameters"]["new"] == 0
    assert record["steps_taken"] == 2
    report = (trained(name) / "report.md").read_text()
    assert f"| trainable parameters | {trainable:,} of {total:,} |" in report
    assert "| new parameters | 0 |" in report
    planned = workspace.run("plan", *arguments_of(name), "output=json")
    assert planned.code == 0, planned.err
    plan = json.loads(planned.out)
    for key in ("parameters", "plan", "epsilon"):
        assert plan[key] == record[key], key
    assert plan.get("lora", {}).get("targets") == (["c_attn"] if name == "lora" else None)


@pytest.mark.parametrize(
    "name",
    slow_but([name for name in COUNTED if name in EVALUATED], EVALUATED),
)
def test_a_run_read_back_scores_as_it_did_when_training_ended(
    workspace: Workspace, trained: Train, name: str
) -> None:
    expected = scores_after(trained(name))
    outcome = workspace.run("eval", f"run={name}", "output=json")
    assert outcome.code == 0, outcome.err
    printed = json.loads(outcome.out)["evaluations"][0]["metrics"]
    assert printed == pytest.approx(expected, rel=1e-5)
    again = scores_after(trained(name))
    assert again == pytest.approx(expected, rel=1e-5) and again


@pytest.mark.parametrize("name", slow_but(COUNTED, METHODS.entries()))
def test_a_runs_model_names_no_path_that_the_user_did_not_give(
    workspace: Workspace, trained: Train, name: str
) -> None:
    files = [path for path in (trained(name) / "model").rglob("*") if path.is_file()]
    assert files
    for path in files:
        assert str(workspace.root).encode() not in path.read_bytes(), path


@pytest.mark.parametrize("name", ("lora", "adapter", "prefix"))
def test_an_adapter_over_another_base_is_refused(
    workspace: Workspace, trained: Train, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base that learned the records without noise would bear the promise of the run."""
    copy, other = workspace.root / f"{name}_moved", workspace.root / f"{name}_base"
    monkeypatch.chdir(workspace.root)
    shutil.copytree(trained(name), copy)
    shutil.copytree(workspace.root / "model", other)
    (weights,) = other.glob("*.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    config = copy / "config.yaml"
    written = config.read_text()
    assert written.count("path: model\n") == 1
    released = json.loads((copy / "model/tensors.json").read_text())
    asked = [
        ("eval", f"run={copy.name}"),
        ("generate", f"run={copy.name}", "prompts=data/test.jsonl"),
        *(("export", f"run={copy.name}", f"merge={merge}") for merge in ("true", "false")),
    ]
    for edited in (f"path: {other.name}\n", "path: model\n  init: random\n"):
        kept = [
            line for line in written.splitlines(keepends=True) if "init: pretrained" not in line
        ]
        config.write_text("".join(kept).replace("path: model\n", edited))
        for command in asked:
            outcome = workspace.run(*command)
            assert (outcome.code, outcome.out) == (3, ""), outcome.err
            assert released["base"] in outcome.err
            if other.name in edited:
                assert base_digest(ModelConfig(name="other", path=other.name)) in outcome.err
        with pytest.raises(StateError, match=r"tensors\.json"):
            open_run(copy).load_model()
    config.write_text(written)
    assert workspace.run("export", f"run={copy.name}", "base_model=acme/base").code == 0
    exported = json.loads((copy / "export/tensors.json").read_text())
    assert exported["base"] == released["base"] and exported["tensors"] == released["tensors"]


def test_a_sweep_over_methods_trains_each_in_a_folder_of_its_own(workspace: Workspace) -> None:
    sweep = ("--multirun", "method=bitfit,lora", "hydra.sweep.dir=sweep")
    outcome = workspace.run("train", *PRIVATE, "eval.enabled=false", *sweep)
    assert outcome.code == 0, outcome.err
    records = sorted((workspace.root / "sweep").glob("*/privacy.json"))
    phases = [json.loads(path.read_text())["plan"]["phases"][0]["method"] for path in records]
    assert sorted(phases) == ["bitfit", "lora"]


@pytest.mark.parametrize("name", ["lora", "two_phase"])
def test_a_method_trains_without_privacy(workspace: Workspace, name: str) -> None:
    plain = (*TRAINING[:-1], *QUICK[:-1], "privacy=none", "eval.enabled=false")
    arguments = (*plain, f"method={name}", *SETTINGS.get(name, ()))
    outcome = workspace.run("train", *arguments, f"hydra.run.dir=plain-{name}")
    assert outcome.code == 0, outcome.err
    folder = workspace.root / f"plain-{name}"
    record = json.loads((folder / "privacy.json").read_text())
    assert record["private"] is False and record["parameters"]["trainable"] > 0
    assert "\n> **NOT PRIVATE" in (folder / "report.md").read_text()
    assert not (folder / "ledger.jsonl").exists()


POSITIONS = 128
FITTING = POSITIONS - MAX_LENGTH


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("prefix", [f"method.length={FITTING}", "method.hidden=2"]),
        *slow(("prompt", [f"method.num_virtual_tokens={FITTING}"])),
    ],
)
def test_the_longest_prompt_that_is_not_refused_fits(
    workspace: Workspace, name: str, settings: list[str]
) -> None:
    """Synthetic records of ``task.max_length`` and texts cut to what is left for them."""
    one = ("train.steps=1", f"hydra.run.dir=longest-{name}")
    decode = ("eval.limit=2", "decode.num_beams=1", f"decode.max_new_tokens={MAX_LENGTH - 1}")
    outcome = workspace.run("train", *PRIVATE, f"method={name}", *settings, *one, *decode)
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["method=prompt", f"method.num_virtual_tokens={FITTING + 1}"],
         ["task.max_length", "23", "24"]),
        (["method=prefix", "eval.enabled=true", "decode.max_new_tokens=118"],
         ["decode.max_new_tokens", "118"]),
        *slow(
            (["method=prefix", f"method.length={FITTING + 1}"],
             ["task.max_length", "23", "24"]),
            (["method=prompt", "method.num_virtual_tokens=128"],
             ["128 positions"]),
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["train", *slow(("plan",))])
def test_a_prompt_that_leaves_too_few_positions_is_refused(
    workspace: Workspace, command: str, arguments: list[str], parts: list[str]
) -> None:
    sentence = workspace.refusal(command, *PRIVATE, "eval.enabled=false", *arguments)
    assert [part for part in parts if part not in sentence] == [], sentence


def test_scoring_a_prefix_run_with_too_long_an_answer_is_refused(
    workspace: Workspace, trained: Train
) -> None:
    trained("prefix")
    sentence = workspace.refusal("eval", "run=prefix", "decode.max_new_tokens=125")
    assert "decode.max_new_tokens must be below 125" in sentence


OUT_OF_RANGE = {
    "method=adapter": {"bottleneck": 0, "targets": []},
    "method=compacter": {"n": 0},
    "method=lora": {"rank": 0, "alpha": 0, "dropout": 1, "targets": "c_attn"},
    "method=prefix": {"length": 0, "hidden": 0},
    "method=prompt": {"num_virtual_tokens": 0},
    "method=rgp": {"rank": 0, "power_iterations": 0},
    "method=top2": {"blocks": 0},
    "method=two_phase": {"full_epochs": 0, "bitfit_learning_rate": 0, "bitfit_max_grad_norm": 0},
    "optimizer=adamw": {"beta1": 1},
    "scheduler=linear": {"warmup_steps": -1},
}


@pytest.mark.parametrize("option", OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_by_its_key(option: str) -> None:
    composed = compose("train", [option, "privacy.eps=3"], TrainCommand).values
    for key, value in OUT_OF_RANGE[option].items():
        values, name = deepcopy(composed), f"{option.partition('=')[0]}.{key}"
        OmegaConf.update(values, name, value)
        with rejects(name):
            load(values, TrainCommand)
        OmegaConf.update(values, name, OmegaConf.select(composed, name))
        load(values, TrainCommand)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["method=bitfit", "model.path=llama"],
         ["method=bitfit", "LlamaForCausalLM", "method=full"]),
        *slow(
            (["method=linear_probe"], ["GPT2LMHeadModel", "method.untie=true", "method=top2"]),
            (["method=lora", "method.targets=[nosuch]"],
             ["method.targets", "got 'nosuch'", "c_attn, c_fc, c_proj, lm_head, wpe, wte"]),
            (["method=retrain", "model.init=pretrained"],
             ["method=retrain needs model.init=random, got pretrained"]),
            (["method=bitfit", "method.rank=4"],
             ["unknown configuration key method.rank", "method.train_biases"]),
            (["train.transfer_sample_rate_from=e2ee"],
             ["'e2ee'", "Try: train.transfer_sample_rate_from=e2e"]),
            (["method=lora", "method.rank=17"],
             ["method.rank must be at most 16", "h.0.attn.c_attn, got 17", "method.rank=16"]),
            (["method=adapter"], ["method.bottleneck must be at most the hidden size 16, got 48"]),
            (["scheduler=linear", "scheduler.timescale=10"],
             ["scheduler.timescale=10", "inverse_sqrt"]),
            (["optimizer=sgd", "optimizer.beta1=0.9"],
             ["unknown configuration key optimizer.beta1", "optimizer.momentum"]),
            (["method=two_phase", "model.path=llama", "method.full_epochs=0.2"],
             ["method=two_phase", "LlamaForCausalLM", "method=full"]),
            (["method=rgp", "method.rank=17"],
             ["method.rank must be at most", "16 in transformer.h.0", "method.rank=16"]),
            (["method=prefix", "model.gradient_checkpointing=true"],
             ["method=prefix needs model.gradient_checkpointing=false"]),
            (["method=top2"],
             ["method.blocks must be at most the 1 block(s)", "Try: method.blocks=1"]),
            (["method=adapter", "method.targets=[nosuch]"],
             ["method.targets", "got nosuch", "c_attn, c_fc, c_proj, lm_head"]),
            (["method=compacter", "method.n=3"],
             ["method.n must divide the hidden size 16, got 3"]),
            (["method=compacter", "method.bottleneck=6"],
             ["method.bottleneck must be a multiple of method.n=4, got 6"]),
            (["method.name=lorra"], ["method.name must be one of adapter", "got 'lorra'"]),
            (["method=bitfit", "+method.rank=4"], ["unknown configuration key method.rank"]),
            (["scheduler=linear", "scheduler.decay=1"],
             ["unknown configuration key scheduler.decay"]),
            (["train.transfer_sample_rate_from=nosuch"],
             ["train.transfer_sample_rate_from must name a task", "'nosuch'", "cola, "]),
        ),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_one_sentence_before_anything_is_written(
    workspace: Workspace, arguments: list[str], parts: list[str]
) -> None:
    sentence = workspace.refusal("train", *PRIVATE, "eval.enabled=false", *arguments)
    assert [part for part in parts if part not in sentence] == [], sentence


def test_a_clipping_norm_of_a_phase_without_privacy_is_refused(workspace: Workspace) -> None:
    plain = (*TRAINING[:-1], *QUICK[:-1], "privacy=none", "method=two_phase")
    norm = ("method.full_epochs=0.2", "method.bitfit_max_grad_norm=0.05")
    sentence = workspace.refusal("train", *plain, *norm)
    assert sentence.startswith("privacy=none ") and "0.05" in sentence, sentence
