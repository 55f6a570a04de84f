"""A run's folder gives back the trained model: whole, or an adapter on its base."""

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from dpft.commands.task_model import TrainedModel, head_of, prepare_model, trained_model_of_run
from dpft.config.load import from_values
from dpft.config.schema import TrainConfig
from dpft.evaluation.eval_config import EvalConfig
from dpft.generation.decoding import DecodeConfig, evaluation_mode
from dpft.methods.base import METHODS, Method
from dpft.models.architecture import read_architecture
from dpft.models.loading import load_tokenizer
from dpft.models.losses import answer_logits
from dpft.models.source import ModelConfig
from dpft.privacy.privacy_config import NoPrivacy
from dpft.tasks.base import TASKS, LabeledExample, Task
from dpft.training.optimizers import OPTIMIZERS, SchedulerConfig
from dpft.training.training_config import TrainingConfig
from tests.models import small
from tests.slowness import slow_but
from tests.stories.glue import FILMS

CONF = Path(__file__).parents[2] / "conf"
RECORDS = [LabeledExample(texts=(text, "a song"), label=0.0) for text in FILMS]


def part(group: str, name: str, **settings: object) -> dict[str, object]:
    return {**OmegaConf.to_object(OmegaConf.load(CONF / group / f"{name}.yaml")), **settings}


def configuration(task: Task, model: ModelConfig, method: Method) -> TrainConfig:
    return TrainConfig(
        task=task, model=model, method=method, privacy=NoPrivacy(name="none"),
        train=TrainingConfig(expected_batch_size=2, steps=1, seed=5),
        optimizer=OPTIMIZERS.named("adamw")(name="adamw"),
        scheduler=SchedulerConfig(name="constant"),
        eval=EvalConfig(), decode=DecodeConfig(),
    )  # fmt: skip


def logits(trained_model: TrainedModel, task: Task, model=None) -> torch.Tensor:
    head = trained_model.head(task)
    encoding = trained_model.encoding(task, max_new_tokens=None)
    model = trained_model.load(head) if model is None else model
    batch = encoding.layout.collate(encoding.rows(RECORDS))
    with torch.no_grad(), evaluation_mode(model):
        return answer_logits(model, batch)


CASES = [
    ("bert", {}, {}),
    ("bert", {"objective": "cls"}, {}),
    ("bert", {"objective": "cls"}, {"pooling": "mean"}),
    ("bert", {"objective": "cls"}, {"init": "random"}),
    ("gpt2", {}, {}),
    ("gpt2", {"objective": "cls"}, {}),
    ("t5", {}, {}),
]


@pytest.mark.slow
@pytest.mark.parametrize("method", slow_but(("lora",), ("full", "lora")))
@pytest.mark.parametrize(("name", "settings", "change"), slow_but(CASES[:1], CASES))
def test_a_runs_folder_gives_the_trained_models_logits(tmp_path, method, name, settings, change):
    base = small.save(name, tmp_path / "base")
    model = ModelConfig(name=name, path=str(base), **change)
    task = from_values(part("task", "mnli", max_length=24, **settings), TASKS.named("mnli"))
    chosen = method_of(method, name)
    config = configuration(task, model, chosen)
    architecture = read_architecture(model)
    head = head_of(task, architecture)
    trained, _ = prepare_model(config, architecture, head)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for parameter in trained.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    chosen.save(trained, tmp_path / "run" / "model")
    load_tokenizer(architecture, kind=head.kind).save_pretrained(tmp_path / "run" / "model")
    trained_model = trained_model_of_run(tmp_path / "run", config)
    expected = logits(trained_model, task, trained)
    assert torch.allclose(logits(trained_model, task), expected, atol=1e-6)
    untrained = logits(TrainedModel(architecture=architecture), task)
    assert not torch.allclose(untrained, expected, atol=1e-2)


def method_of(name: str, model: str) -> Method:
    if name == "full":
        return METHODS.named(name)(name=name)
    targets = {"bert": ("query", "value"), "gpt2": ("c_attn",), "t5": ("q", "v")}
    return METHODS.named(name)(name=name, targets=targets[model])
