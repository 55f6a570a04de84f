"""Persona-Chat from the command line: tokens that a task adds, in training and read back."""

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dpft.commands.ledger_account import saved_run
from dpft.commands.task_model import trained_model_of_run
from dpft.models.loading import add_tokens
from dpft.tasks.personachat import TOKENS
from tests.stories.tiny import EVALUATION, TRAINING, Workspace, make_workspace, own_entries

pytestmark = pytest.mark.slow

TASK = (
    "task=personachat", "task.data_dir=talk", "task.max_length=48",
    "task.metrics=[bleu,perplexity]",
)  # fmt: skip
QUICK = ("train.steps=2", "privacy.noise_multiplier=1")
ARGUMENTS = (*TRAINING, *TASK, *QUICK, *EVALUATION, "train.learning_rate=0.1")
METHODS = {
    "full": (),
    "lora": (),
    "prefix": ("method.length=3", "method.hidden=4"),
    "lora-random": ("model.init=random",),
    "lora-embeddings": ("method.train_embeddings=true",),
}

Train = Callable[[str], Path]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = make_workspace(tmp_path_factory.mktemp("talk"))
    (workspace.root / "talk").mkdir()
    for split, count in (("train", 20), ("validation", 3)):
        rows = [
            {"personality": [f"i am {i}."], "history": ["hello", "hi", f"who {i}?"],
             "candidates": [f"i am {i}"]}
            for i in range(count)
        ]  # fmt: skip
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (workspace.root / "talk" / f"{split}.jsonl").write_text(lines)
    return workspace


@pytest.fixture(scope="module")
def trained(workspace: Workspace) -> Train:
    @functools.cache
    def train(name: str) -> Path:
        method = f"method={name.partition('-')[0]}"
        return workspace.finished(*ARGUMENTS, method, *METHODS[name], f"hydra.run.dir={name}")

    return train


def loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> torch.nn.Module:
    """Return a run's trained model."""
    monkeypatch.chdir(folder.parent)
    saved = saved_run(str(folder))
    trained_model = trained_model_of_run(folder, saved)
    return trained_model.load(trained_model.head(saved.task))


def embedding(model: torch.nn.Module) -> torch.Tensor:
    return model.get_input_embeddings().weight


def expected_rows(workspace: Workspace) -> torch.Tensor:
    """Means by the base model and its tokenizer alone, no record at hand."""
    base = AutoModelForCausalLM.from_pretrained(workspace.root / "model")
    tokenizer = AutoTokenizer.from_pretrained(workspace.root / "model")
    names = ("persona", "speaker1", "speaker2")
    return torch.stack([embedding(base)[tokenizer(name)["input_ids"]].mean(0) for name in names])


@pytest.mark.parametrize(
    "name",
    METHODS,
)
def test_a_run_read_back_scores_as_it_did_when_training_ended(
    workspace: Workspace, trained: Train, name: str
) -> None:
    entries = own_entries(trained(name))
    (expected,) = [entry["metrics"] for entry in entries if entry["stage"] == "after"]
    assert expected["perplexity"] > 0
    outcome = workspace.run("eval", f"run={name}")
    assert outcome.code == 0, outcome.err
    *_, entry = own_entries(trained(name))
    assert entry["metrics"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["lora", "prefix"])
def test_rows_that_do_not_train_are_the_bases_own_means(
    workspace: Workspace, trained: Train, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = embedding(loaded(trained(name), monkeypatch))
    assert torch.allclose(table[-3:], expected_rows(workspace))


@pytest.mark.parametrize("name", ["full", "lora-embeddings"])
def test_rows_that_train_are_read_back_as_trained(
    workspace: Workspace, trained: Train, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = embedding(loaded(trained(name), monkeypatch))
    assert not torch.isclose(table[-3:], expected_rows(workspace)).all(dim=1).any()


def test_a_full_runs_folder_loads_with_transformers_alone(trained: Train) -> None:
    folder = trained("full") / "model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == embedding(model).shape[0]
    assert add_tokens(tokenizer, TOKENS) == {}


@pytest.mark.parametrize("name", ("full", "lora"))
def test_a_plan_counts_the_new_rows_as_the_run_does(
    workspace: Workspace, trained: Train, name: str
) -> None:
    record = json.loads((trained(name) / "privacy.json").read_text())
    method = f"method={name.partition('-')[0]}"
    outcome = workspace.run("plan", *ARGUMENTS, method, *METHODS[name], "output=json")
    assert outcome.code == 0, outcome.err
    plan = json.loads(outcome.out)
    assert plan["parameters"] == record["parameters"]


def test_a_plan_needs_no_tokenizer(workspace: Workspace) -> None:
    bare = workspace.root / "bare"
    bare.mkdir()
    shutil.copy(workspace.root / "model" / "config.json", bare)
    whole = workspace.run("plan", *ARGUMENTS, "output=json")
    outcome = workspace.run("plan", *ARGUMENTS, "model.path=bare", "output=json")
    assert outcome.code == 0, outcome.err
    counts = [json.loads(answer.out)["parameters"] for answer in (outcome, whole)]
    assert counts[0]["total"] == counts[1]["total"]


def test_a_model_that_never_saw_the_tokens_is_scored(workspace: Workspace) -> None:
    arguments = (*TASK, "model=tiny", "model.path=model", *EVALUATION, "hydra.run.dir=zero")
    outcome = workspace.run("eval", *arguments, "eval.split_is_public=true", "output=json")
    assert outcome.code == 0, outcome.err
    (entry,) = json.loads(outcome.out)["evaluations"]
    assert entry["metrics"]["perplexity"] > 0


def test_an_exported_model_is_scored_as_the_run(workspace: Workspace, trained: Train) -> None:
    trained("lora")
    outcome = workspace.run("export", "run=lora", "merge=true", "to=whole")
    assert outcome.code == 0, outcome.err
    arguments = (*TASK, "model=tiny", "model.path=whole", *EVALUATION, "hydra.run.dir=scored")
    outcome = workspace.run("eval", *arguments)
    assert outcome.code == 0, outcome.err
    (entry,) = own_entries(workspace.root / "scored")
    entries = own_entries(workspace.root / "lora")
    assert entry["metrics"] == pytest.approx(entries[-1]["metrics"], rel=1e-4)
