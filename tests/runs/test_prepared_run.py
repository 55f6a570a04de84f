"""What a run needs before its folder is written to."""

from typing import Any

import pytest

from dpft.config.schema import TrainConfig
from dpft.runs import prepared_run
from dpft.runs.prepared_run import Prepared, prepare
from dpft.runs.records import TrainingData


def test_held_out_rows_are_never_trained_on(
    config: TrainConfig, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[TrainingData] = []

    def records(_: Any, data: TrainingData, *__: Any, **___: Any) -> Any:
        trained.append(data)
        return prepared.training_set

    monkeypatch.setattr(prepared_run, "make_training_set", records)
    monkeypatch.setattr(prepared_run, "prepare_model", lambda *_: (prepared.model, frozenset()))
    division = prepare(config, None, None).division
    held = {example.prompt for example in division.scored["held_out"]}
    kept = {example.prompt for example in trained[0].examples}
    assert kept and held and not held & kept
    assert len(held | kept) == 40


def test_the_public_size_counts_those_held_out_too(prepared: Prepared) -> None:
    """A count of what is left would tell how many the secret key left out."""
    assert (prepared.plan.size.num_examples, len(prepared.division.kept) < 40) == (20, True)
    assert prepared.plan.privacy is not None and prepared.plan.privacy.sample_rate == 2 / 20
