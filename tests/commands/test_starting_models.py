"""A model that is private already keeps its epsilon, and reports say both."""

import json
from pathlib import Path
from typing import Any

import pytest

from dpft.commands.new_run import starting_models
from dpft.models.source import ModelConfig
from dpft.privacy.accounting import account
from dpft.privacy.ledger import read_ledger
from dpft.privacy.plan import StepsPlan
from dpft.reports.privacy_sentences import (
    started_from,
    starting_sentences,
)
from dpft.strict_model import as_json
from tests.commands.run_folders import make_plan, make_run
from tests.reports.plain import WITH_TOKENIZER, plain
from tests.reports.test_privacy_record import record as private
from tests.reports.test_privacy_record import without_privacy

pytestmark = pytest.mark.usefixtures("shared_accounting")
EVENT = make_plan().event()
HEAD = "ab" * 32
PROMISED: dict[str, Any] = {
    **private(calibration=None), "epsilon": 3.0, "delta": 1e-6, "data": "corpus (a folder)",
    "ledger": {"lines": 5, "head": HEAD},
}  # fmt: skip
NOT_PRIVATE = without_privacy(StepsPlan(num_examples=100, expected_batch_size=10, steps=5))
KEPT = {
    **{name: PROMISED[name] for name in ("private", "epsilon", "delta", "accountant")},
    **{name: PROMISED[name] for name in ("data", "model")},
    **{name: PROMISED["plan"][name] for name in ("unit", "unit_definition", "num_examples")},
    "neighboring_relation": PROMISED["plan"]["neighboring_relation"],
    "ledger": HEAD,
}
"""What a run that starts from it says of it."""
started_from, starting_sentences = plain(started_from), plain(starting_sentences)


def beside(folder: Path, record: dict[str, Any]) -> ModelConfig:
    """A run's model in a folder, its privacy.json beside it."""
    (folder / "model").mkdir(parents=True)
    (folder / "privacy.json").write_text(json.dumps(record))
    return ModelConfig(name="local", path=str(folder / "model"))


def private_model(folder: Path, **recorded: Any) -> ModelConfig:
    """The folder of a private run that was exported, with its ledger."""
    make_run(folder, known={"data": "corpus (a folder)", **recorded})
    return ModelConfig(name="local", path=str(folder))


def test_an_exported_model_has_the_guarantee_of_the_ledger_beside_it(tmp_path: Path) -> None:
    model = private_model(tmp_path / "run", epsilon=0.1)
    (entry,) = starting_models(model)
    assert (entry.delta, entry.data) == (1 / 80, "corpus (a folder)")
    assert entry.epsilon == account(EVENT, accountant="rdp").epsilon
    assert entry.ledger == read_ledger(tmp_path / "run" / "ledger.jsonl").head


def test_a_model_without_its_ledger_gets_a_warning_and_states_no_guarantee(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert starting_models(beside(tmp_path / "run", PROMISED)) == []
    assert "has no ledger.jsonl next to it" in caplog.text


def test_public_training_in_between_loses_nothing(tmp_path: Path) -> None:
    first = starting_models(private_model(tmp_path / "first"))
    between = starting_models(
        beside(tmp_path / "b", NOT_PRIVATE | {"starting_models": as_json(first)})
    )
    assert between == first
    again = starting_models(private_model(tmp_path / "c", starting_models=as_json(first)))
    assert len(again) == 2 and again[1:] == first


def test_a_model_without_a_promise_brings_nothing(tmp_path: Path) -> None:
    assert starting_models(beside(tmp_path / "run", NOT_PRIVATE)) == []
    (tmp_path / "other").mkdir()
    assert starting_models(ModelConfig(name="local", path=str(tmp_path / "other"))) == []
    assert starting_models(ModelConfig(name="gpt2", hub_name="gpt2")) == []


def test_a_report_says_both_and_what_they_are_together() -> None:
    public = {**NOT_PRIVATE, "starting_models": [KEPT]}
    assert "(ε = 3.0000, δ = 1e-06)-differentially private** for the records of corpus" in (
        started_from(public)
    )
    assert starting_sentences(public) == []
    private = PROMISED | {"epsilon": 2.0, "starting_models": [KEPT]}
    (sentence,) = starting_sentences(private)
    assert "at most ε = 5.0000, δ = 2e-06" in sentence


def test_with_its_tokenizer_a_model_promises_what_both_do() -> None:
    entry = KEPT | {"with_tokenizer": {**WITH_TOKENIZER, "epsilon": 4.0, "delta": 2e-6}}
    assert "ε = 4.0000, δ = 2e-06" in started_from({**NOT_PRIVATE, "starting_models": [entry]})


def test_predictable_noise_promises_nothing() -> None:
    seeded = KEPT | {"private": False}
    assert "no guarantee" in started_from({**NOT_PRIVATE, "starting_models": [seeded]})
    assert starting_sentences(PROMISED | {"starting_models": [seeded]}) == []
