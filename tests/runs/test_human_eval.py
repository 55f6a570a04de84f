"""Beam stands for nucleus here, a strategy whose texts need no seed."""

import csv
import io
import json
import shutil
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.slowness import slow
from tests.stories.tiny import EVALUATION, TRAINING, Workspace, make_workspace, write_rows

BEAM = "human_eval_strategy=beam"
ASK = ("eval", "run=a", "human_eval=3", BEAM, "eval.limit=null")
PUBLIC = "eval.split_is_public=true"
FILES = ("human_eval.csv", "human_eval_key.json")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with two finished runs, ``a`` and ``b``; their split is private."""
    workspace = make_workspace(tmp_path_factory.mktemp("human"))
    quick = ("eval.enabled=false", "privacy.self_check=false", "train.steps=1")
    arguments = (*TRAINING, *EVALUATION, "privacy.noise_multiplier=1", *quick)
    outcome = workspace.run("train", *arguments, "hydra.run.dir=a")
    assert outcome.code == 0, outcome.err
    shutil.copytree(workspace.root / "a", workspace.root / "b")
    return workspace


@pytest.fixture(autouse=True)
def no_sheet(workspace: Workspace) -> None:
    for name in FILES:
        for folder in ("a", "a/private"):
            (workspace.root / folder / name).unlink(missing_ok=True)


def sheet(path: Path) -> list[dict[str, str]]:
    text = path.read_bytes().decode("utf-8-sig")
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def fill(path: Path, rating: str) -> None:
    rows = sheet(path)
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "rating": rating} for row in rows)


def test_the_sheet_of_a_private_split_goes_to_private_and_its_ratings_are_reported(
    workspace: Workspace,
) -> None:
    outcome = workspace.run(*ASK, "human_eval_runs=[b]")
    assert outcome.code == 0, outcome.err
    private = workspace.root / "a" / "private"
    assert outcome.new == {private / name for name in FILES}
    assert {stat.S_IMODE((private / name).stat().st_mode) for name in FILES} == {0o600}
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    rows = sheet(private / FILES[0])
    assert [row["item"] for row in rows] == ["1"] * 3 + ["2"] * 3 + ["3"] * 3
    assert {row["context"] for row in rows} <= {f"name[Inn {i}]" for i in range(6)}
    assert sum(row["response"].endswith("is an inn.") for row in rows) >= 3
    key = json.loads((private / FILES[1]).read_text())
    assert key["systems"] == ["a", "b", "reference"]
    assert (key["split"], key["split_is_public"], key["decode"]["strategy"]) == (
        "test",
        False,
        "beam",
    )
    assert "Inn" not in (private / FILES[1]).read_text()
    assert "Inn" not in outcome.out + outcome.err
    fill(private / FILES[0], "4")
    report = workspace.run("report", f"ratings={private / FILES[0]}")
    assert report.code == 0, report.err
    assert report.out.splitlines()[2].split()[:4] == ["a", "3", "3", "4.00"]
    assert "not covered by epsilon" in report.out
    assert report.new == frozenset()


def test_the_sheet_of_a_public_split_stands_in_the_runs_folder(workspace: Workspace) -> None:
    outcome = workspace.run(*ASK, PUBLIC, "output=json")
    record = json.loads(outcome.out)
    assert (record["sheet"], record["items"], record["rows"]) == ("a/human_eval.csv", 3, 6)
    assert outcome.new == {workspace.root / "a" / name for name in FILES}


@pytest.mark.slow
def test_the_sheet_does_not_depend_on_the_order_of_the_runs(workspace: Workspace) -> None:
    sheets = []
    for run, other in (("a", "b"), ("b", "a")):
        outcome = workspace.run("eval", f"run={run}", f"human_eval_runs=[{other}]", *ASK[2:])
        assert outcome.code == 0, outcome.err
        private = workspace.root / run / "private"
        sheets.append([(private / name).read_text() for name in FILES])
        for name in FILES:
            (private / name).unlink()
    assert sheets[0][0] == sheets[1][0]
    systems = [json.loads(key)["systems"] for _, key in sheets]
    assert systems == [["a", "b", "reference"], ["b", "a", "reference"]]


def test_a_sheet_that_may_hold_ratings_is_not_written_over(workspace: Workspace) -> None:
    assert workspace.run(*ASK, PUBLIC).code == 0
    before = (workspace.root / "a" / FILES[0]).read_bytes()
    assert "may hold ratings" in workspace.refusal(*ASK, PUBLIC)
    (workspace.root / "a" / FILES[0]).rename(workspace.root / "sent.csv")
    assert "human_eval_key.json exists" in workspace.refusal(*ASK, PUBLIC)
    assert (workspace.root / "sent.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["human_eval=7"], ["at most the number of distinct inputs", "got 7"]),
        (["eval.split=train"], ["training records", "eval.split=train"]),
        (["human_eval_runs=[./a]"], ["different folders"]),
        (["human_eval_strategy=warp"], ["human_eval_strategy must be one of", "'warp'"]),
        *slow(
            (["human_eval=0"], ["human_eval must be at least 1", "got 0"]),
            (["human_eval_runs=[a]"], ["different folders", "a, a"]),
            (["human_eval_runs=[none]"], ["'none'", "does not exist"]),
            (["human_eval=null", "human_eval_runs=[b]"], ["human_eval_runs needs human_eval"]),
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    workspace: Workspace, arguments: list[str], parts: list[str]
) -> None:
    sentence = workspace.refusal(*ASK, *arguments)
    assert [part for part in parts if part not in sentence] == [], sentence


def test_a_sheet_needs_a_run(workspace: Workspace) -> None:
    sentence = workspace.refusal("eval", "model=tiny", "task.data_dir=data", "human_eval=3", BEAM)
    assert "human_eval needs run" in sentence


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("split: test", "split: validation", "must be runs with eval.split=test"),
        ("data_dir: data", "data_dir: others", "has other inputs"),
    ],
)
def test_a_run_of_another_split_is_refused(
    workspace: Workspace, old: str, new: str, part: str
) -> None:
    others = workspace.root / "others"
    others.mkdir(exist_ok=True)
    write_rows(others / "test.jsonl", [("name[Elsewhere]", "Elsewhere.")] * 6)
    path = workspace.root / "b" / "config.yaml"
    saved = path.read_text()
    assert old in saved
    path.write_text(saved.replace(old, new))
    try:
        sentence = workspace.refusal(*ASK, "human_eval_runs=[b]")
    finally:
        path.write_text(saved)
    assert part in sentence and "Elsewhere" not in sentence


def test_a_run_of_another_task_is_refused(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = {"a": "e2e", "b": "dart"}
    saved = {name: SimpleNamespace(task=SimpleNamespace(name=of)) for name, of in tasks.items()}
    monkeypatch.setattr("dpft.runs.human_eval.saved_run", saved.__getitem__)
    sentence = workspace.refusal(*ASK, "human_eval_runs=[b]")
    assert "must be runs of task=e2e, as a, got b of task=dart" in sentence
