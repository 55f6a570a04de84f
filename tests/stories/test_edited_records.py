"""An edited privacy.json changes no epsilon that is printed; an edited model is refused."""

import json
import shutil
from pathlib import Path

import pytest

from dpft.commands.finished_run import open_run
from dpft.errors import StateError
from tests.commands.run_folders import edit
from tests.stories.test_resume import RUN
from tests.stories.tiny import Workspace, make_workspace

pytestmark = pytest.mark.slow

RUN = (*(word for word in RUN if "noise_seed" not in word), "eval.enabled=false")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A run ``whole``, whose folder ``copy`` tests edit."""
    made = make_workspace(tmp_path_factory.mktemp("edited"))
    made.finished(*RUN, "hydra.run.dir=whole")
    return made


@pytest.fixture
def copy(workspace: Workspace) -> Path:
    folder = workspace.root / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    return shutil.copytree(workspace.root / "whole", folder)


def test_every_command_prints_the_epsilon_of_the_ledger(workspace: Workspace, copy: Path) -> None:
    answer = json.loads(workspace.run("account", "run=copy", "output=json").out)
    calibration = {"accountant": "rdp", "epsilon": 0.01, "grid": "g", "target": 0.01}
    changed = {"calibration": calibration, "noise_multiplier": 99.0, "num_examples": 9_000_000}
    edit(copy, epsilon=0.01, epsilons={"rdp": 0.01}, plan=answer["plan"] | changed)
    edit(copy, delta=0.3, ledger={"lines": 3, "head": "f" * 64})
    with (copy / "config.yaml").open("a") as file:
        file.write("# edited\n")
    row = {"meaning_representation": "name[Bar]", "human_reference": ""}
    (workspace.root / "prompts.jsonl").write_text(json.dumps(row) + "\n")
    for words in (
        ("account", "run=copy"),
        ("report", "copy", "output=json"),
        ("generate", "run=copy", "prompts=prompts.jsonl", "to=rows.jsonl"),
        ("export", "run=copy", "to=exported"),
        ("report", "copy", "rebuild=true"),
        ("eval", "run=copy"),
    ):
        outcome = workspace.run(*words)
        assert outcome.code == 0, outcome.err
    known = {"epsilon": answer["epsilon"], "delta": answer["delta"]}
    known["ledger"] = {name: answer["ledger"][name] for name in ("lines", "head")}
    known["plan"] = answer["plan"]
    beside = json.loads((workspace.root / "rows.privacy.json").read_text())["guarantee"]
    exported = json.loads((workspace.root / "exported/privacy.json").read_text())
    for content in (beside, exported):
        assert {name: content[name] for name in known} == known
    opened = open_run(copy)
    assert (opened.epsilon, opened.delta) == (answer["epsilon"], answer["delta"])
    for page in (copy / "report.md", copy / "report.html", workspace.root / "exported/README.md"):
        text = page.read_text()
        assert "0.0100" not in text and f"{answer['epsilon']:.2f}" in text, page
    assert answer["ledger"]["head"] in (copy / "report.md").read_text()
    alone = json.loads(workspace.run("account", "run=exported", "output=json").out)
    assert alone["epsilon"] == answer["epsilon"], "an export has the ledger, which is all it needs"


COMMANDS = {
    "resume": ("train", "resume=copy"),
    "eval": ("eval", "run=copy"),
    "export": ("export", "run=copy"),
    "generate": ("generate", "run=copy", "prompts=data/test.jsonl"),
    "train on": ("train", *RUN, "model.path=copy/model"),
}


@pytest.mark.parametrize("command", COMMANDS)
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
    assert "(1 tensors differ, the first is " in outcome.err
    with pytest.raises(StateError, match="1 tensors differ"):
        open_run(copy)
