"""Public files of a run are edited: no command tells an epsilon that its ledger does not bear out.

Whoever owns the folder can edit all of it. What the ledger's hashes and ``private/`` cover is
computed; what another file says otherwise is named, and whatever would print of that file refuses.
"""

import json
import shutil
from pathlib import Path

import pytest

from dpft.errors import StateError
from dpft.privacy.ledger import read_ledger
from dpft.runs.opened_run import open_run
from tests.runs.run_folders import edit
from tests.stories.test_resume import RUN
from tests.stories.tiny import Workspace, make_workspace

RUN = (*RUN, "eval.enabled=false")
PRV_ITSELF = True
PRIVATE = [word for word in RUN if not word.startswith(("privacy.noise", "privacy.accountant"))]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A run ``loud`` with so little noise that prv has no answer."""
    made = make_workspace(tmp_path_factory.mktemp("edited"))
    words = (*PRIVATE, "privacy.noise_multiplier=0.2", "privacy.accountant=prv")
    outcome = made.run("train", *words, "hydra.run.dir=loud")
    assert outcome.code == 0, outcome.err
    return made


@pytest.fixture
def copy(workspace: Workspace) -> Path:
    folder = workspace.root / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    return shutil.copytree(workspace.root / "loud", folder)


def told(epsilon: float) -> dict:
    """What an attacker writes into privacy.json, without a contradiction inside of it."""
    calibration = {"accountant": "prv", "epsilon": epsilon, "grid": "g", "target": epsilon}
    answers = {"prv": {"lower": 0.1, "estimate": 0.4, "upper": epsilon}}
    return {
        "epsilon": epsilon, "accountant": "prv", "calibration": calibration, "epsilons": answers,
    }  # fmt: skip


def test_a_planted_calibration_is_no_headline_of_a_ledger_that_its_head_verifies(
    workspace: Workspace, copy: Path
) -> None:
    """It was told as "epsilon = 0.5000 (upper bound by prv)" of a ledger of epsilon 147.8."""
    shutil.rmtree(copy / "private")
    edit(copy, **told(28.0))  # Above what a threshold on the noisy sums shows.
    head = read_ledger(copy / "ledger.jsonl").head
    for more in ((), ("accountant=prv",)):
        outcome = workspace.run("account", "run=copy", f"head={head}", *more)
        assert outcome.code == 0, outcome.err
        text = " ".join(outcome.out.split())
        assert "epsilon = 28" not in text and "is the head that was given" in text
        headline = text.split("epsilon = ")[1]
        assert float(headline.split()[0]) > 30 and "(upper bound by pld)" in headline
        assert "copy/privacy.json: calibration must be nothing, as the ledger says" in text
    shown = json.loads(workspace.run("account", "run=copy", f"head={head}", "output=json").out)
    assert shown["epsilon"] > 30 and "calibration" not in shown
    together = workspace.run("account", "runs=[copy]")
    assert together.code == 0 and "calibration must be nothing" in " ".join(together.out.split())
    (copy / "privacy.json").unlink()
    (copy / "config.yaml").unlink()
    alone = json.loads(workspace.run("account", "run=copy", "output=json").out)
    assert alone["epsilon"] == shown["epsilon"], "the ledger is all that it needs"


COMMANDS = {
    "resume": ("train", "resume=copy"),
    "eval": ("eval", "run=copy"),
    "export": ("export", "run=copy"),
    "report": ("report", "copy"),
    "generate": ("generate", "run=copy", "prompts=data/test.jsonl"),
    "train on": ("train", *RUN, "model.path=copy/model"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_planted_epsilon_is_refused_by_all_that_would_print_it(
    workspace: Workspace, copy: Path, command: str
) -> None:
    """The ledger's plan knows that no calibration chose the noise."""
    edit(copy, **told(0.5))
    outcome = workspace.run(*COMMANDS[command])
    assert (outcome.code, outcome.out) == (3, ""), outcome.err
    assert "copy/privacy.json: calibration must be nothing, as " in outcome.err
    with pytest.raises(StateError, match="calibration must be nothing"):
        open_run(copy)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"epsilon": 0.5}, "epsilon"),
        ({"delta": 0.3}, "delta"),
        ({"accountant": "rdp"}, "epsilon"),
        ({"steps": 1}, "steps"),
        ({"steps_taken": 1}, "steps_taken"),
        ({"unit": "customer_id"}, "unit"),
        ({"noise_multiplier": 5.0}, "noise_multiplier"),
    ],
)
def test_one_edited_number_is_refused_with_its_name(
    workspace: Workspace, copy: Path, changes: dict, name: str
) -> None:
    edit(copy, **changes)
    outcome = workspace.run("report", "copy")
    assert (outcome.code, outcome.out) == (3, "")
    assert f"copy/privacy.json: {name} must be " in outcome.err
    answer = workspace.run("account", "run=copy")
    assert answer.code == 0
    assert f"copy/privacy.json: {name} must be " in " ".join(answer.out.split())


def test_an_edited_head_is_the_fault_of_the_file_that_has_it(
    workspace: Workspace, copy: Path
) -> None:
    edit(copy, ledger={"lines": 7, "head": "f" * 64})
    outcome = workspace.run("report", "copy")
    assert outcome.code == 3 and "copy/privacy.json: ledger.head must be" in outcome.err


OF_MODEL = ("resume", "eval", "export", "generate", "train on")


@pytest.mark.parametrize("command", OF_MODEL)
def test_a_model_that_the_run_did_not_release_is_refused(
    workspace: Workspace, copy: Path, command: str
) -> None:
    """Another run's weights, and weights with one flipped bit, bore this run's promise."""
    path = copy / "model/model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    outcome = workspace.run(*COMMANDS[command])
    assert (outcome.code, outcome.out) == (3, ""), outcome.err
    assert "model must hold the model that the run released" in outcome.err
    assert "(1 tensors differ, the first is " in outcome.err
    with pytest.raises(StateError, match="must hold the model that the run released"):
        open_run(copy)


def test_a_comparison_needs_every_private_runs_ledger(workspace: Workspace, copy: Path) -> None:
    for name in ("private", "ledger.jsonl"):
        path = copy / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    edit(copy, **told(0.5))
    assert "copy" in workspace.refusal("report", "copy", "loud")
