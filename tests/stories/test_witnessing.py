"""``privacy.witness=``: heads lodged elsewhere while a run trains, by the command line's word."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from tests.stories.test_resume import RUN, broken
from tests.stories.tiny import Outcome, Workspace, make_workspace

pytestmark = pytest.mark.slow  # tests/privacy/test_witness.py has the fast ones

FAILS = f"[{sys.executable},-c,'raise SystemExit(1)']"
LONGER = ("train.steps=22", "train.checkpoint_every=10")
PROGRAM = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A run ``seen`` with a witness, ``heads/of``, and ``crashed`` that broke off at step 13."""
    made = make_workspace(tmp_path_factory.mktemp("witness"))
    (made.root / "heads").mkdir()
    outcome = made.run("train", *RUN, *LONGER, "privacy.witness=heads/of", "hydra.run.dir=seen")
    assert outcome.code == 0, outcome.err
    with pytest.MonkeyPatch.context() as patch:
        given = (*LONGER, "privacy.witness=heads/of")
        crashed = broken(made, patch, "crashed", KeyboardInterrupt(), *given, call=13)
    assert crashed.code == 130, crashed.err
    return made


def copied(workspace: Workspace, name: str) -> Path:
    folder = workspace.root / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    return shutil.copytree(workspace.root / name, folder)


def entries(workspace: Workspace, run: Path, file: str = "heads/of") -> list[int]:
    """Returns the lines of the heads that a file has of a run."""
    name = json.loads((run / "witness.json").read_text())["run"]
    found = map(json.loads, (workspace.root / file).read_text().splitlines())
    return [entry["lines"] for entry in found if entry["run"] == name]


def cut(folder: Path, lines: int) -> None:
    path = folder / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))


def test_a_run_hands_over_its_heads_and_the_report_names_the_witness(
    workspace: Workspace,
) -> None:
    run = workspace.root / "seen"
    # ten steps, the rest with the short last window, and the closing line
    assert entries(workspace, run) == [11, 23, 24]
    record = json.loads((run / "privacy.json").read_text())
    counts = {"file of": {"heads": 3, "failed": 0, "lines": 24}}
    assert record["witness"]["witnesses"] == counts
    assert not any("witness" in warning for warning in record["warnings"])
    for name in ("report.md", "report.html"):
        assert "file of: 3 heads, the last after line 24 of 24" in (run / name).read_text()


def test_no_file_of_the_run_holds_the_witness_itself(workspace: Workspace) -> None:
    run = workspace.root / "seen"
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["privacy"]["witness"] is None
    for path in run.rglob("*"):
        assert not (path.is_file() and b"heads/of" in path.read_bytes()), path


def test_a_ledger_cut_where_private_is_gone_is_found_out_by_the_witness(
    workspace: Workspace,
) -> None:
    folder = copied(workspace, "crashed")
    shutil.rmtree(folder / "private")
    words = ("account", "run=copy", "witness=heads/of")
    table = workspace.run(*words).out
    assert "has the head after line 11, as it is here" in table and "end is unproven" in table
    cut(folder, 8)
    outcome = workspace.run(*words)
    assert (outcome.code, outcome.out) == (3, "")
    assert "after line 11, as heads/of has it, got 8 lines" in outcome.err


def test_the_witness_of_an_ended_run_shows_its_end(workspace: Workspace) -> None:
    copied(workspace, "seen")
    outcome = workspace.run("account", "run=copy", "witness=heads/of", "output=json")
    ledger = json.loads(outcome.out)["ledger"]
    assert (ledger["witnessed_lines"], ledger["end"]) == (24, "witness")
    assert "witness needs run=RUN" in workspace.refusal(
        "account", "sample_rate=0.1", "steps=3", "delta=1e-5", "eps=1", "witness=heads/of"
    )


def test_a_run_goes_on_under_its_name_with_any_witness_of_the_command_line(
    workspace: Workspace,
) -> None:
    folder = copied(workspace, "crashed")
    (workspace.root / "keep.py").write_text(PROGRAM)
    program = f"[{sys.executable},keep.py,heads/by-program]"
    outcome = workspace.run("train", "resume=copy", f"privacy.witness={program}")
    assert outcome.code == 0, outcome.err
    # 12 steps from 10 on are one window, then the closing line; a copy draws new noise, so the
    # three steps that the ledger had after the checkpoint count beside them
    assert entries(workspace, folder, "heads/by-program") == [26, 27]
    names = json.loads((folder / "privacy.json").read_text())["witness"]["witnesses"]
    assert names.keys() == {"file of", f"program {Path(sys.executable).name}"}


def test_a_run_has_its_name_at_its_witness_in_its_ledger(workspace: Workspace) -> None:
    """Else a cut ledger would go on under a new name, which the witness knows nothing of."""
    folder = copied(workspace, "crashed")
    path = folder / "witness.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"run": "0" * 32}))
    for words in (("account", "run=copy"), ("train", "resume=copy", "privacy.witness=heads/of")):
        outcome = workspace.run(*words)
        assert outcome.code == 3, outcome.err
        assert "witness.json must name the run" in outcome.err
    path.unlink()
    found = workspace.run("account", "run=copy", "witness=heads/of", "output=json")
    assert json.loads(found.out)["ledger"]["witnessed_lines"] == 11
    shutil.copyfile(workspace.root / "heads/of", workspace.root / "heads/too")
    resumed = workspace.run("train", "resume=copy", "privacy.witness=heads/too")
    assert resumed.code == 0, resumed.err
    assert json.loads(path.read_text())["run"] == json.loads(found.out)["ledger"]["run_id"]


def test_a_head_before_the_last_line_does_not_show_the_end(workspace: Workspace) -> None:
    """A ledger without private/, cut to just the line that the witness saw last."""
    folder = copied(workspace, "crashed")
    shutil.rmtree(folder / "private")
    cut(folder, 11)
    outcome = workspace.run("account", "run=copy", "witness=heads/of", "output=json")
    assert outcome.code == 0, outcome.err
    ledger = json.loads(outcome.out)["ledger"]
    assert (ledger["witnessed_lines"], ledger["end"]) == (11, "unproven")


def test_a_run_that_its_witness_saw_further_does_not_go_on(workspace: Workspace) -> None:
    """Ledger, journal and checkpoints were all put back to before step 10."""
    folder = copied(workspace, "crashed")
    cut(folder, 10)
    (folder / "private/checkpoints").rename(folder / "private/kept")
    (folder / "private/checkpoints").mkdir()
    (step,) = (folder / "private/kept").iterdir()
    state = json.loads((step / "state.json").read_text())
    from dpft.privacy.ledger import read_ledger
    from dpft.training.checkpoint import _digest

    state.pop("checksum")
    state["run"]["ledger"] |= {"lines": 10, "head": read_ledger(folder / "ledger.jsonl").head}
    state["run"]["ledger"]["position"] = 9
    target = folder / "private/checkpoints/step-00000009"
    shutil.copytree(step, target)
    (target / "state.json").write_text(json.dumps({**state, "checksum": _digest(state)}))
    journal = folder / "private/steps.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:9]))
    outcome = workspace.run("train", "resume=copy", "privacy.witness=heads/of")
    assert outcome.code == 3, outcome.err
    assert "after line 11, as heads/of has it, got 10 lines" in outcome.err


def test_a_witness_that_fails_costs_no_step_and_the_report_says_so(workspace: Workspace) -> None:
    folder = copied(workspace, "crashed")
    outcome = workspace.run("train", "resume=copy", f"privacy.witness={FAILS}")
    assert outcome.code == 0, outcome.err
    name = f"program {Path(sys.executable).name}"
    assert f"{name} did not take the ledger's head" in outcome.err
    warnings = json.loads((folder / "privacy.json").read_text())["warnings"]
    assert any(
        f"{name}, has a head of 0 of the ledger's 27 lines and 2 heads were not taken" in one
        for one in warnings
    )
    assert "2 not taken" in (folder / "report.md").read_text()


def executed(workspace: Workspace) -> Path:
    """A file that a received folder's program would make."""
    mark = workspace.root / "executed"
    mark.unlink(missing_ok=True)
    return mark


def planted(mark: Path) -> list[str]:
    return ["touch", str(mark)]


def refused(outcome: Outcome, mark: Path) -> None:
    assert (outcome.code, outcome.out) == (2, "")
    assert "privacy.witness must be given on the command line" in outcome.err
    assert outcome.err.count("\n") == 1
    assert not mark.exists()


def test_a_received_folders_configuration_names_no_witness(workspace: Workspace) -> None:
    folder, mark = copied(workspace, "crashed"), executed(workspace)
    path = folder / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["privacy"]["witness"] = planted(mark)
    path.write_text(yaml.safe_dump(config))
    refused(workspace.run("train", "resume=copy"), mark)


@pytest.mark.parametrize("way", ["recipe", "privacy", "sweep"])
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_received_recipe_names_no_witness(workspace: Workspace, way: str, goes_on: bool) -> None:
    """By an experiment, by another ``privacy`` group, or as a parameter of a sweep."""
    folder, mark = copied(workspace, "crashed"), executed(workspace)
    received = folder / "conf"
    witness = {"witness": planted(mark)}
    if way == "recipe":
        path, content = received / "experiment" / "theirs.yaml", {"privacy": witness}
    elif way == "privacy":
        path, content = received / "privacy" / "theirs.yaml", {"defaults": ["dp"], **witness}
    else:
        params = {"privacy.witness": f"[{','.join(planted(mark))}]"}
        content = {"hydra": {"sweeper": {"params": params}}}
        path = received / "experiment" / "theirs.yaml"
    path.parent.mkdir(parents=True)
    text = yaml.safe_dump(content)
    path.write_text(text if way == "privacy" else f"# @package _global_\n{text}")
    choice = ("privacy=theirs",) if way == "privacy" else ("experiment=theirs",)
    begin = ("resume=copy",) if goes_on else (*RUN, "hydra.run.dir=theirs")
    flags = ("--multirun", "hydra.sweep.dir=theirs") if way == "sweep" else ()
    outcome = workspace.run("train", *begin, *choice, "--config-dir", "copy/conf", *flags)
    assert outcome.code == 2, outcome.err
    assert "privacy.witness must be given on the command line" in outcome.err
    assert not mark.exists()


def test_what_cannot_be_a_witness_is_refused_before_training(workspace: Workspace) -> None:
    for value, part in {
        "missing/heads": "must be a file that can be written",
        "new/heads": "in the run's own folder",
        "[no-such-program]": "a program that can be run",
        "[]": "must be a file elsewhere, or a program as a list",
    }.items():
        words = ("train", *RUN, "hydra.run.dir=new", f"privacy.witness={value}")
        assert part in workspace.refusal(*words)


def test_a_search_takes_no_witness_since_it_would_count_the_trials(workspace: Workspace) -> None:
    words = [word for word in RUN if not word.startswith("privacy.")]
    given = ("privacy.eps=3", "privacy.witness=heads/of", "eval.split_is_public=true")
    sentence = workspace.refusal("tune", *words, *given, "hydra.run.dir=search")
    assert "tune needs privacy.witness=null" in sentence
