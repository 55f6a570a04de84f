"""A run's record is made of its ledger, held against its plan, and its report of that record."""

import json
import shutil
from pathlib import Path

import pytest

from dpft.commands.closing_summary import report
from dpft.commands.run_plan import PublicSize, RunPlan
from dpft.config.load import dump
from dpft.config.schema import TrainConfig
from dpft.errors import DpftError
from dpft.evaluation.evaluate import Evaluation
from dpft.methods.base import ParameterCounts
from dpft.privacy.journal import read_run_ledger
from dpft.privacy.plan import PrivacyPlan
from tests.commands.configs import settings, with_privacy
from tests.training.toy import plan, privacy, session, spent, train_privately

COUNTS = ParameterCounts(trainable=5, new=0, total=9)
SCORES = Evaluation(
    task="e2e", split="test", examples=0, stage="after", metrics={"bleu": 12.5}, not_computed={},
    predictions=(),
)  # fmt: skip


@pytest.fixture(scope="module")
def private() -> TrainConfig:
    return settings("task=e2e", "privacy.noise_multiplier=1", "privacy.accountant=rdp")


@pytest.fixture
def folder(tmp_path: Path, private: TrainConfig, shared_accounting: None) -> Path:
    """A run of five steps by the plan of ``tests.training.toy``, trained and not yet reported."""
    train_privately(session(tmp_path), plan(), privacy(None), epsilon_after=spent)
    dump(private, tmp_path / "config.yaml")
    return tmp_path


def run_plan(own: PrivacyPlan | None) -> RunPlan:
    size = PublicSize(num_examples=12, source="privacy.num_examples")
    return RunPlan(size=size, steps=5, phases=(), privacy=own)


def record(folder: Path) -> dict:
    content: dict = json.loads((folder / "privacy.json").read_text())
    return content


@pytest.mark.slow
def test_a_private_run_is_reported_by_its_ledger(folder: Path, private: TrainConfig) -> None:
    report(private, run_plan(plan()), folder, COUNTS, [SCORES], read_run_ledger(folder))
    content = record(folder)
    assert content["private"] and (content["plan"]["steps"], content["steps_taken"]) == (5, 5)
    assert content["ledger"]["lines"] == 7
    assert content["parameters"]["trainable"] == 5
    assert content["num_examples_source"] == "privacy.num_examples"
    entries = json.loads((folder / "metrics.json").read_text())["evaluations"]
    assert [entry["metrics"] for entry in entries] == [{"bleu": 12.5}]
    text = (folder / "report.md").read_text()
    assert "5 steps taken of 5 planned" in text and "12.5" in text


@pytest.mark.slow
def test_what_weakens_the_promise_is_in_the_record(folder: Path, private: TrainConfig) -> None:
    shutil.rmtree(folder)
    seeded = plan().replace(reproducible=True)
    train_privately(session(folder), seeded, privacy(None), epsilon_after=spent)
    weak = with_privacy(private, noise_seed=1)
    dump(weak, folder / "config.yaml")
    report(weak, run_plan(seeded), folder, COUNTS, [], read_run_ledger(folder))
    content = record(folder)
    assert (content["private"], content["plan"]["reproducible"]) == (False, True)


@pytest.mark.slow
def test_trust_rule_1_a_ledger_that_is_not_of_the_plan_is_not_reported(
    folder: Path, private: TrainConfig
) -> None:
    with pytest.raises(DpftError, match="the plan of the run"):
        report(
            private,
            run_plan(plan(noise_multiplier=2.0)),
            folder,
            COUNTS,
            [],
            read_run_ledger(folder),
        )
    assert not (folder / "privacy.json").exists() and not (folder / "report.md").exists()


@pytest.mark.slow
def test_a_run_without_privacy_has_a_record_without_epsilon(tmp_path: Path) -> None:
    config = settings("task=e2e", "privacy=none")
    dump(config, tmp_path / "config.yaml")
    report(config, run_plan(None), tmp_path, COUNTS, [], None)
    content = record(tmp_path)
    assert content["private"] is False and "epsilon" not in content
    assert (content["plan"]["steps"], content["plan"]["num_examples"]) == (5, 12)
    assert "\n> **NOT PRIVATE" in (tmp_path / "report.md").read_text()
