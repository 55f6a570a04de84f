"""Which words of a command line set which keys, and what ``run=`` takes from the run it names."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from omegaconf import OmegaConf

from dpft.cli import overrides
from dpft.cli.hydra_record import recorded_job
from dpft.cli.overrides import (
    checked_overrides,
    given_overrides,
    inherit,
    is_on_command_line,
    overridden_keys,
    with_task_of_run,
)
from dpft.config.load import dump
from dpft.config.schema import EvaluateConfig, TrainCommand
from dpft.errors import InputError
from tests.config.test_conf import loaded


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a finished run without privacy, on task e2e from ``mine``."""
    folder = tmp_path_factory.mktemp("overrides") / "run"
    (folder / "model").mkdir(parents=True)
    given = ["task=e2e", "privacy=none", "task.data_dir=mine", "task.max_length=50"]
    command = loaded("train", given)
    assert isinstance(command, TrainCommand)
    dump(command.settings(), folder / "config.yaml")
    return str(folder)


def task_words(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """Makes ``words`` the overrides of the running job."""
    hydra = SimpleNamespace(overrides=SimpleNamespace(task=list(words)))
    monkeypatch.setattr(overrides, "HydraConfig", SimpleNamespace(get=lambda: hydra))


def test_a_key_is_what_stands_before_the_first_equals_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("task=e2e", "+a.b=c=d", "++x=1", "~tuning.space.train")
    given = {"task": "e2e", "a.b": "c=d", "x": "1", "tuning.space.train": ""}
    assert given_overrides(words) == given
    task_words(monkeypatch, *words)
    assert overridden_keys() == list(given)


def test_only_a_word_of_the_command_line_itself_counts_as_given() -> None:
    with recorded_job(OmegaConf.create({}), ["++privacy.witness=heads", "task=e2e"]):
        assert is_on_command_line("privacy.witness")
        assert not is_on_command_line("privacy")
    assert not is_on_command_line("privacy.witness")


def test_the_task_of_the_named_run_leads(run: str) -> None:
    words = ["task.max_length=9", f"run={run}"]
    assert with_task_of_run(words) == ["task=e2e", *words]
    for none in (["task=sst2"], ["run=null"], ["run="]):
        assert with_task_of_run(none) == none
    with pytest.raises(InputError, match="'nowhere', which does not exist"):
        with_task_of_run(["run=nowhere"])


def test_a_runs_sections_lead_and_overrides_lead_them(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["task=e2e", f"run={run}", "task.max_length=70", "train.device=cpu"]
    composed = loaded("eval", words)
    assert isinstance(composed, EvaluateConfig) and composed.task.data_dir is None
    task_words(monkeypatch, *words)
    config = inherit(composed, run, ("task", "model"))
    assert (config.task.data_dir, config.task.max_length) == ("mine", 70)
    assert (config.run, config.train) == (run, composed.train)
    saved = yaml.safe_load((Path(run) / "config.yaml").read_text())
    assert config.model.name == saved["model"]["name"]


def test_epochs_and_steps_are_refused_together_but_not_a_null() -> None:
    with pytest.raises(InputError, match="train.epochs and train.steps"):
        checked_overrides(["train.epochs=1", "++train.steps=2"])
    words = ["train.epochs=1", "train.steps=null"]
    assert checked_overrides(words) == words


def test_the_users_epochs_win_over_the_steps_of_a_recipe() -> None:
    words = ["experiment=demo", "train.epochs=1"]
    assert checked_overrides(words) == [*words, "train.steps=null"]
    assert checked_overrides(["experiment=demo"]) == ["experiment=demo"]


def test_a_promise_without_privacy_is_refused_but_a_size_is_none() -> None:
    with pytest.raises(InputError, match="privacy=none .* no privacy.eps"):
        checked_overrides(["privacy=none", "privacy.eps=3"])
    words = ["privacy=none", "privacy.num_examples=3"]
    assert checked_overrides(words) == words
