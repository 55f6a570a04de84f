"""What the words of a command decide before anything is loaded."""

import pytest
from omegaconf import OmegaConf

from dpft.commands import overrides as configuring
from dpft.commands import tune as tuning
from dpft.commands.overrides import evaluate_overrides, tune_configuration
from dpft.config.hydra_compose import Words
from tests.rejections import rejects


@pytest.fixture
def run_of_dart(monkeypatch: pytest.MonkeyPatch) -> None:
    """``run=RUN`` names a run of the task dart."""
    monkeypatch.setattr(
        configuring,
        "with_task_of_run",
        lambda words: ["task=dart", *words] if "run=RUN" in words else words,
    )


def test_a_run_brings_its_task_and_another_model_needs_no_run(run_of_dart: None) -> None:
    assert evaluate_overrides(["run=RUN"]) == ["task=dart", "run=RUN"]
    assert evaluate_overrides(["task=e2e", "model=gpt2"]) == ["task=e2e", "model=gpt2"]


@pytest.mark.parametrize("words", [[], ["eval.limit=10", "output=json"]])
def test_an_evaluation_of_nothing_says_the_ways_to_name_it(words: list[str]) -> None:
    with rejects("run"):
        evaluate_overrides(words)
    assert evaluate_overrides([*words, "model=tiny"]) == [*words, "model=tiny"]


@pytest.mark.parametrize("key", ["eval.every_steps", "eval.every_epochs"])
def test_a_schedule_is_of_a_training(key: str) -> None:
    with rejects(key):
        evaluate_overrides(["run=RUN", f"{key}=10"])


@pytest.mark.parametrize(
    ("word", "key"),
    [("model=gpt2", "model"), ("model.path=DIR", "model.path"), ("+model.path=DIR", "model.path")],
)
def test_another_model_beside_a_run_is_refused(run_of_dart: None, word: str, key: str) -> None:
    with rejects(key):
        evaluate_overrides(["run=RUN", word])


def test_a_search_that_is_gone_on_with_takes_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "resumed_search", lambda folder: f"the search in {folder}")
    composed = OmegaConf.create({"resume": "RUN"})
    alone = Words(job=("resume=RUN",), typed=("resume=RUN",))
    assert tune_configuration(composed, alone) == "the search in RUN"
    more = Words(job=("resume=RUN", "train.steps=3"), typed=())
    with rejects("train.steps"):
        tune_configuration(composed, more)
