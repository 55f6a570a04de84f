"""The records that a run was trained on, told apart as the run did, or not at all."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from dpft.audit.audited_run import (
    RunRecords,
    Unseen,
    records_and_unseen,
    unseen_records,
)
from dpft.commands.ledger_account import saved_run
from dpft.commands.splits import (
    load_training_data,
)
from dpft.commands.task_model import trained_model_of_run
from dpft.config.schema import TrainConfig
from dpft.data.canaries import CanaryConfig
from dpft.data.encoding import Encoding
from dpft.errors import StateError
from tests.audit.conftest import RECORDS
from tests.stories.tiny import TEST, TRAIN, Workspace

pytestmark = pytest.mark.slow


def read(run: str, **changes: Any) -> tuple[TrainConfig, RunRecords | str, Unseen | str]:
    config = saved_run(run).replace(**changes)
    encoding: Encoding = trained_model_of_run(Path(run), config).encoding(
        config.task, max_new_tokens=None
    )
    return config, *records_and_unseen(Path(run), config, encoding)


def test_splits_of_their_own_are_what_they_are_called(texts_runs: Workspace) -> None:
    _, records, unseen = read("pairs")
    assert isinstance(records, RunRecords) and isinstance(unseen, Unseen)
    assert (len(records.training), len(unseen.records)) == (TRAIN, TEST)
    assert (unseen.split, unseen.public) == ("test", False)


def test_records_that_were_held_out_are_told_from_the_others(texts_runs: Workspace) -> None:
    config, records, unseen = read("held")
    assert isinstance(records, RunRecords) and isinstance(unseen, Unseen)
    assert unseen.places is not None
    assert sorted([*records.places, *unseen.places]) == list(range(RECORDS))
    everything = load_training_data(config).examples
    assert [everything[at] for at in unseen.places] == list(unseen.records)
    assert [everything[at] for at in records.places] == list(records.training)
    assert not unseen.public


def test_of_large_units_only_what_was_trained_on_is_a_training_record(
    texts_runs: Workspace,
) -> None:
    """Each owner has three records, of which two were kept; the fingerprint knows which."""
    _, records, unseen = read("owners")
    assert isinstance(records, RunRecords) and isinstance(unseen, Unseen)
    assert len(unseen.records) % 3 == 0
    assert len(records.training) == (RECORDS - len(unseen.records)) // 3 * 2


def test_without_the_key_of_the_held_out_records_neither_is_known(texts_runs: Workspace) -> None:
    (texts_runs.root / "held/private/held_out.key").unlink()
    _, records, unseen = read("held")
    assert records == unseen
    assert "private/held_out.key" in str(records) and "audit=synthetic" in str(records)


def test_without_the_key_of_the_units_training_records_are_not_known(
    texts_runs: Workspace,
) -> None:
    (texts_runs.root / "owners/private/unit_key").unlink()
    assert "private/unit_key" in str(read("owners")[1])


def test_other_records_than_the_runs_are_seen(texts_runs: Workspace) -> None:
    for run, file in (("pairs", "data/train.jsonl"), ("held", "moods.jsonl")):
        path = texts_runs.root / file
        path.write_text("".join(path.read_text().splitlines(True)[1:]))
        assert isinstance(read(run)[1], str)


def test_a_run_without_its_private_folder_is_read_as_far_as_it_goes(
    texts_runs: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    (texts_runs.root / "pairs/private/fingerprint").unlink()
    with caplog.at_level(logging.WARNING):
        assert isinstance(read("pairs")[1], RunRecords)
    assert "training records not compared with those of the run" in caplog.text


def test_without_the_runs_canaries_its_records_are_taken_as_they_are_with_a_warning(
    texts_runs: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    """The fingerprint is of canaries, too, so that without them it tells nothing."""
    for run in ("pairs", "owners"):
        path = texts_runs.root / run / "private/fingerprint"
        path.write_text(json.dumps({**json.loads(path.read_text()), "hmac": "00"}))
        assert isinstance(read(run)[1], str)
        with_canaries = {"audit": CanaryConfig(canaries=3)}
        with caplog.at_level(logging.WARNING):
            assert isinstance(read(run, **with_canaries)[1], RunRecords)
        assert "training records not compared with those of the run" in caplog.text
        caplog.clear()


def test_a_damaged_fingerprint_is_said(texts_runs: Workspace) -> None:
    (texts_runs.root / "pairs/private/fingerprint").write_text("{")
    with pytest.raises(StateError, match="private/fingerprint"):
        read("pairs")


def test_records_that_are_gone_are_named(texts_runs: Workspace) -> None:
    (texts_runs.root / "data/train.jsonl").rename(texts_runs.root / "elsewhere.jsonl")
    _, records, unseen = read("pairs")
    assert "train" in str(records)
    assert isinstance(unseen, Unseen)


def test_without_a_test_split_there_are_no_other_records(texts_runs: Workspace) -> None:
    (texts_runs.root / "data/test.jsonl").unlink()
    assert "test" in str(unseen_records(saved_run("pairs")))
