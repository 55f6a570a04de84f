"""Methods with phases and step hooks of their own, from the command line."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from dpft.privacy.ledger import read_ledger
from tests.stories.tiny import EVALUATION, TRAINING, Workspace, make_workspace

# Forty examples in batches of eight: an epoch is five steps.
SEVEN_STEPS = (*TRAINING, "privacy.noise_multiplier=1", "train.steps=7")
TWO_PHASE = ("method=two_phase", "method.bitfit_max_grad_norm=0.05")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return make_workspace(tmp_path_factory.mktemp("phases"))


@pytest.mark.slow
def test_a_two_phase_run_reports_both_phases_under_one_epsilon(workspace: Workspace) -> None:
    outcome = workspace.run(
        "train", *SEVEN_STEPS, *EVALUATION, *TWO_PHASE, "hydra.run.dir=two_phase"
    )
    assert outcome.code == 0, outcome.err
    assert outcome.err.count("Clipping engine: book_keeping (auto)") == 2
    folder = workspace.root / "two_phase"
    record = json.loads((folder / "privacy.json").read_text())
    assert record["plan"]["phases"] == [
        {"method": "full", "steps": 5, "max_grad_norm": 0.1, "sensitivity": 0.1},
        {"method": "bitfit", "steps": 2, "max_grad_norm": 0.05, "sensitivity": 0.05},
    ]
    assert record["parameters"]["trainable"] == record["parameters"]["total"]
    curve = record["epsilon_curve"]
    assert curve["steps"] == [1, 2, 3, 4, 5, 6, 7] and curve["epsilons"][-1] == record["epsilon"]
    mechanisms = read_ledger(folder / "ledger.jsonl").mechanisms
    assert [step.sensitivity for step in mechanisms] == [0.1] * 5 + [0.05] * 2
    assert "| clipping in phase 2, bitfit, 2 steps |" in (folder / "report.md").read_text()
    planned = workspace.run("plan", *SEVEN_STEPS, *TWO_PHASE, "output=json")
    plan = json.loads(planned.out)
    for key in ("plan", "epsilon", "parameters"):
        assert plan[key] == record[key]


@pytest.mark.slow
def test_an_rgp_run_moves_weights_and_leaves_a_plain_model(workspace: Workspace) -> None:
    outcome = workspace.run(
        "train", *SEVEN_STEPS, *EVALUATION, "method=rgp", "train.steps=2", "hydra.run.dir=rgp"
    )
    assert outcome.code == 0, outcome.err
    before, after = (load_weights(workspace.root / path) for path in ("model", "rgp/model"))
    assert set(before) == set(after)
    moved = {name for name in before if not before[name].equal(after[name])}
    assert moved == {name for name in before if ".c_" in name and name.endswith("weight")}
    record = json.loads((workspace.root / "rgp" / "privacy.json").read_text())
    assert record["parameters"]["trainable"] == 16 * 16
    assert [phase["method"] for phase in record["plan"]["phases"]] == ["rgp"]


@pytest.mark.slow
def test_a_phases_learning_rate_beside_none_is_refused_before_anything_is_written(
    workspace: Workspace,
) -> None:
    settings = ("method.bitfit_learning_rate=0.1", "train.learning_rate=0")
    sentence = workspace.refusal("train", *SEVEN_STEPS, *TWO_PHASE, *settings)
    assert sentence.startswith("train.learning_rate must be positive")


def load_weights(folder: Path) -> dict:
    return load_file(folder / "model.safetensors")
