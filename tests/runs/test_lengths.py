from pathlib import Path

import pytest

from dpft.errors import InputError
from dpft.models.architecture import read_architecture
from dpft.models.source import ModelConfig
from dpft.runs.modality import modality_of
from dpft.runs.task_model import fitted_to
from tests.config.test_conf import loaded
from tests.models import small

OWN = ["task=custom", "task.data_dir=notes.csv", 'task.text="{note}"', "privacy.eps=8"]


def test_a_length_that_nobody_gave_is_the_models_less_what_the_method_takes(caplog) -> None:
    config = loaded("train", [*OWN, "model=tiny", "method=prefix", "method.length=6"])
    with caplog.at_level("INFO"):
        fitted = fitted_to(config, read_architecture(config.model))
    assert fitted.task.max_length == 256 - 6
    assert caplog.messages == [
        "task.max_length=250: the positions that model=tiny has for a text, since none is given"
    ]


def test_a_model_of_many_positions_leaves_512_without_a_word(tmp_path: Path, caplog) -> None:
    task = loaded("train", OWN).task
    architecture = read_architecture(ModelConfig(name="t5", path=str(small.save("t5", tmp_path))))
    with caplog.at_level("INFO"):
        assert modality_of(task).fitted(task, architecture, 0).max_length == 512
    assert caplog.messages == []


def test_a_length_that_was_given_stays_and_is_refused() -> None:
    config = loaded("train", [*OWN, "model=tiny", "task.max_length=300"])
    architecture = read_architecture(config.model)
    assert fitted_to(config, architecture) is config
    with pytest.raises(InputError, match="at most the model's 256 positions, got 300"):
        modality_of(config.task).check_fit(config.task, architecture, max_new_tokens=None)
