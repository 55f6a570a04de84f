"""What a run needs before its folder is written to."""

from typing import Any

import pytest

from dpft.config.schema import TrainConfig
from dpft.errors import InputError
from dpft.runs import prepared_run
from dpft.runs.folder import fresh_secrets
from dpft.runs.held_out import TrainingData
from dpft.runs.prepared_run import Prepared, prepare
from tests.runs.configs import with_train


def prepared_anew(config: TrainConfig) -> Prepared:
    return prepare(config, fresh_secrets(config), None)


def test_held_out_rows_are_never_trained_on(
    config: TrainConfig, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[TrainingData] = []

    def records(_: Any, data: TrainingData, *__: Any, **___: Any) -> Any:
        trained.append(data)
        return prepared.training_set

    monkeypatch.setattr(prepared_run, "make_training_set", records)
    monkeypatch.setattr(prepared_run, "prepare_model", lambda *_: (prepared.model, frozenset()))
    division = prepared_anew(config).division
    held = {example.prompt for example in division.scored["held_out"]}
    kept = {example.prompt for example in trained[0].examples}
    assert kept and held and not held & kept
    assert len(held | kept) == 40


def test_the_public_size_counts_those_held_out_too(prepared: Prepared) -> None:
    """A count of what is left would tell how many the secret key left out."""
    assert (prepared.plan.size.num_examples, len(prepared.division.kept) < 40) == (20, True)
    assert prepared.plan.privacy is not None and prepared.plan.privacy.sample_rate == 2 / 20


def test_a_length_and_a_batch_that_do_not_fit_are_said_together(config: TrainConfig) -> None:
    """Only a model and data that were read say so."""
    long = config.task.replace(max_length=512)
    many = with_train(config, expected_batch_size=1024)
    with pytest.raises(InputError) as refusal:
        prepared_anew(many.replace(task=long))
    length, batch = refusal.value.faults
    assert "at most the model's 128 positions, got 512" in length.message
    assert "at most the 20 values of owner, got 1024" in batch.message


def test_tokens_below_a_unit_are_refused_before_data_are_read(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_run, "load_training_data", None)
    with pytest.raises(InputError, match="at least 64, the tokens of a unit of 2 records"):
        prepared_anew(with_train(config, micro_batch_tokens=63))


def test_the_configuration_and_the_records_have_the_number_that_auto_stands_for(
    config: TrainConfig,
) -> None:
    limits = {"micro_batch_size": "auto", "micro_batch_tokens": 64, "pad_to_multiple_of": 8}
    found = prepared_anew(with_train(config, **limits))
    assert found.config.train.micro_batch_size == found.training_set.micro_batch_size == 4
    assert found.training_set.micro_batch_tokens == 64
    layout = found.training_set.layout
    assert (layout.pad_to_multiple_of, layout.max_length) == (8, 32)
    assert found.encoding.layout.pad_to_multiple_of == 1, "what is scored is padded as ever"
