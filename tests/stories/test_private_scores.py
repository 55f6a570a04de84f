"""Trust rule 8: of a private split nobody but the owner has scores or their number."""

import io
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpft
from dpft.data.training_records import KEY_BYTES, split_held_out
from tests.stories.observed import open_to_others
from tests.stories.planted import public_files
from tests.stories.tiny import Outcome, Workspace, card_of, make_workspace

pytestmark = pytest.mark.slow

KEY = bytes(range(KEY_BYTES))
ROWS, FRACTION = 150, 0.8
TRAIN = (
    "train", "task=custom", "task.data_dir=qa.csv", 'task.prompt="{question} "',
    'task.target="{answer}"', "task.max_length=32", "task.metrics=[perplexity]",
    "model=tiny", "model.path=model", f"eval.held_out={FRACTION}", "decode.max_new_tokens=1",
    "decode.num_beams=1", "privacy.noise_multiplier=1", "privacy.num_examples=200",
    "privacy.noise_seed=1", "privacy.accountant=rdp",
    "train.expected_batch_size=10", "train.steps=2", "train.num_threads=1",
    "hydra.run.dir=run",
)  # fmt: skip
MARK = "private: not covered by ε"
HASHES = re.compile(rb"[0-9a-f]{32,64}")
"""Heads and ids, which differ between any two runs."""


def held_out(rows: int) -> list[int]:
    return split_held_out(map(str, range(rows)), FRACTION, KEY)[1]


def workspace_of(root: Path, rows: int, model: Path | None = None) -> Workspace:
    root.mkdir()
    workspace = make_workspace(root)
    if model is not None:
        shutil.rmtree(root / "model")
        shutil.copytree(model, root / "model")
    lines = "".join(f"Where is {n}?,In town {n * n}.\n" for n in range(rows))
    (root / "qa.csv").write_text("question,answer\n" + lines)
    return workspace


class Told:
    """Two runs, of which one was given one more record, which it held out."""

    def __init__(self, root: Path) -> None:
        more = next(n for n in range(ROWS, 2 * ROWS) if n in held_out(n + 1))
        self.count = len(held_out(more))
        assert len(held_out(more + 1)) == self.count + 1
        self.one = workspace_of(root / "one", more)
        self.other = workspace_of(root / "other", more + 1, self.one.root / "model")
        self.said = [each.run(*TRAIN) for each in (self.one, self.other)]
        assert [outcome.code for outcome in self.said] == [0, 0], self.said[0].err
        self.folder = self.one.root / "run"
        own = self.folder / "private" / "metrics.json"
        self.entries = json.loads(own.read_text())["evaluations"]

    def numbers(self) -> list[str]:
        """Return how a text may tell a score or the count; too few digits stand anywhere."""
        values = [value for entry in self.entries for value in entry["metrics"].values() if value]
        texts = [text for v in values for text in (repr(v)[:7], f"{v:.4f}", f"{v:#.5g}")]
        return [*texts, *(f"{value:.2f}" for value in values if value >= 100), str(self.count)]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpft.commands.new_run.new_key", lambda: KEY)
        yield Told(tmp_path_factory.mktemp("told"))


def said_in(numbers: list[str], content: bytes) -> list[str]:
    return [
        number
        for number in numbers
        if re.search(rb"(?<![\w.])" + re.escape(number.encode()), content)
        and (len(number) > 4 or re.search(rb"(?<![\w.])%b(?![\w.])" % number.encode(), content))
    ]


def test_the_owner_has_scores_and_their_number_before_and_after(told: Told) -> None:
    assert [entry["stage"] for entry in told.entries] == ["before", "after"]
    assert {entry["examples"] for entry in told.entries} == {told.count}
    assert all(len(repr(entry["metrics"]["perplexity"])) > 12 for entry in told.entries)
    report = (told.folder / "private" / "report.md").read_text()
    assert said_in(told.numbers(), report.encode())
    for name in ("metrics.json", "report.md"):
        assert stat.S_IMODE((told.folder / "private" / name).stat().st_mode) == 0o600
    assert open_to_others(told.folder) == {}
    run = dpft.open_run(told.folder)
    assert run.scores == told.entries[1]["metrics"]
    assert [entry["examples"] for entry in run.evaluations] == [told.count] * 2


def test_trust_rule_8_no_public_file_and_no_line_tells_a_private_score_or_how_many_there_are(
    told: Told,
) -> None:
    base = {path.read_bytes() for path in (told.one.root / "model").rglob("*") if path.is_file()}
    files = [path for path in public_files(told.folder) if path.read_bytes() not in base]
    names = {path.name for path in files}
    assert {"metrics.json", "report.md", "report.html", "privacy.json"} <= names
    numbers = told.numbers()
    assert len(numbers) >= 7
    held = {path.name: said_in(numbers, path.read_bytes()) for path in files}
    said = (told.said[0].out + told.said[0].err).replace(str(told.one.root), "")
    held |= {"said": said_in(numbers, said.encode())}
    assert {name: found for name, found in held.items() if found} == {}
    for name in ("report.md", "report.html"):
        assert "private/metrics.json" in (told.folder / name).read_text()
    assert "run/private/metrics.json" in told.said[0].out
    assert not re.search("held_out|perplexity|metrics.json", card_of(told.one, "run"))


def test_trust_rule_8_one_held_out_record_more_changes_no_public_byte(told: Told) -> None:
    runs = [each.root / "run" for each in (told.one, told.other)]
    seen = []
    for run in runs:
        files = {str(path.relative_to(run)): path.read_bytes() for path in public_files(run)}
        seen.append(
            {n: content if n.endswith("safetensors") else HASHES.sub(b"HASH", content)
             for n, content in files.items()}
        )  # fmt: skip
    assert len(seen[0]) > 8
    assert [name for name in seen[0] if seen[0][name] != seen[1].get(name)] == []
    assert seen[0].keys() == seen[1].keys()
    roots = [str(each.root) for each in (told.one, told.other)]
    said = zip(told.said, roots, strict=True)
    lines = [(one.err.replace(root, ""), one.out.replace(root, "")) for one, root in said]
    assert lines[0] == lines[1] and "scores: " in lines[0][1]
    private = [(run / "private" / "metrics.json").read_bytes() for run in runs]
    assert private[0] != private[1], "the search would find what differs"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def copy_of(told: Told, to: Path) -> Workspace:
    for name in ("qa.csv", "model", "run"):
        source = told.one.root / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, to / name)
    return Workspace(to)


def rounded(told: Told) -> list[str]:
    values = [entry["metrics"]["perplexity"] for entry in told.entries]
    return [f"{float(f'{value:.2g}'):g}" for value in values]


def check_prints_private_scores(out: str, output: str, perplexity: float) -> None:
    if output == "json":
        (entry,) = json.loads(out)["evaluations"]
        assert entry["note"] == MARK and entry["split_is_public"] is False
        assert entry["metrics"]["perplexity"] == pytest.approx(perplexity)
    else:
        assert MARK in out and f"{perplexity:.4f}" in out


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("output", ["table", "json"])
def test_trust_rule_8_eval_prints_private_scores_with_a_mark(
    told: Told, tmp_path: Path, output: str, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = copy_of(told, tmp_path)
    if terminal:
        monkeypatch.setattr("tests.stories.tiny.io.StringIO", Terminal)
    outcome = workspace.run("eval", "run=run", f"output={output}")
    assert outcome.code == 0, outcome.err
    check_prints_private_scores(outcome.out, output, told.entries[1]["metrics"]["perplexity"])
    assert said_in([*told.numbers(), *rounded(told)], outcome.err.encode()) == []
    kept = json.loads((tmp_path / "run/private/metrics.json").read_text())["evaluations"]
    assert [entry["stage"] for entry in kept] == ["before", "after"]
    public = [path.read_bytes() for path in public_files(tmp_path / "run")]
    assert not any(said_in(told.numbers()[:-1], content) for content in public)


@pytest.mark.parametrize("output", ["table", "json"])
def test_the_scores_of_a_file_on_your_own_data_are_printed_with_a_mark(
    tmp_path: Path, output: str
) -> None:
    rows = tmp_path / "own"
    rows.mkdir()
    (rows / "test.csv").write_text("question,answer\nWhere is 1?,In town 1.\nWhere is 2?,Here.\n")
    written = ({"input": f"Where is {n}? ", "prediction": "In town 1."} for n in (1, 2))
    (tmp_path / "written.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written))
    outcome = Workspace(tmp_path).run(
        "eval", "task=custom", "task.data_dir=own", 'task.prompt="{question} "',
        'task.target="{answer}"', "task.metrics=[text_accuracy]", "predictions=written.jsonl",
        f"output={output}", "hydra.run.dir=scored",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    if output == "json":
        (entry,) = json.loads(outcome.out)["evaluations"]
        assert (entry["metrics"], entry["note"]) == ({"accuracy": 0.5}, MARK)
    else:
        assert MARK in outcome.out and re.search(r"accuracy +0\.5000", outcome.out)
    assert (
        json.loads((tmp_path / "scored/metrics.json").read_text())["evaluations"][0]["metrics"]
        == {}
    )


def test_scores_are_published_rounded_and_marked_where_that_is_asked_for(
    told: Told, tmp_path: Path
) -> None:
    workspace = copy_of(told, tmp_path)
    outcome = workspace.run("eval", "run=run", "eval.publish_private_scores=true", "output=json")
    assert outcome.code == 0, outcome.err
    entries = json.loads((tmp_path / "run" / "metrics.json").read_text())["evaluations"]
    assert [f"{entry['metrics']['perplexity']:g}" for entry in entries] == rounded(told)
    for entry in entries:
        assert entry["digits"] == 2 and "not covered by epsilon" in entry["note"]
        assert "examples" not in entry and "rounded to two digits" in entry["note"]
    for name in ("report.md", "report.html"):
        text = (tmp_path / "run" / name).read_text()
        assert "not covered by ε" in text and all(each in text for each in rounded(told))
        assert "rounded to two digits" in text
    files = public_files(tmp_path / "run")
    assert {f.name: n for f in files if (n := said_in(told.numbers()[:-1], f.read_bytes()))} == {}
    assert not re.search("held_out|perplexity", card_of(workspace, "run"))
    assert workspace.run("eval", "run=run").code == 0
    entries = json.loads((tmp_path / "run" / "metrics.json").read_text())["evaluations"]
    assert [entry["metrics"] for entry in entries] == [{}, {}], "it is taken back for all stages"


def test_private_scores_in_the_public_metrics_json_are_not_printed(
    told: Told, tmp_path: Path
) -> None:
    workspace = copy_of(told, tmp_path)
    run = tmp_path / "run"
    shutil.copy(run / "private" / "metrics.json", run / "metrics.json")
    os.chmod(run / "metrics.json", 0o644)
    for name in ("metrics.json", "report.md"):
        (run / "private" / name).unlink()
    outcome = workspace.run("report", "runs=run", "output=json")
    assert said_in(told.numbers(), outcome.out.encode()) == []
    assert dpft.open_run(run).scores == told.entries[1]["metrics"]


def test_a_folder_that_was_handed_on_without_its_private_part_is_still_read(
    told: Told, tmp_path: Path
) -> None:
    workspace = copy_of(told, tmp_path)
    shutil.rmtree(tmp_path / "run" / "private")
    report = (tmp_path / "run" / "report.md").read_bytes()
    assert workspace.run("report", "runs=run", "rebuild=true").code == 0
    assert (tmp_path / "run" / "report.md").read_bytes() == report
    assert dpft.open_run(tmp_path / "run").scores == {}
    rows = tmp_path / "own"
    rows.mkdir()
    shutil.copy(tmp_path / "qa.csv", rows / "test.csv")
    words = ("task.data_dir=own", "eval.held_out=null", "eval.limit=3")
    outcome = workspace.run("eval", "run=run", *words)
    assert outcome.code == 0, outcome.err
    (entry,) = json.loads((tmp_path / "run/private/metrics.json").read_text())["evaluations"]
    assert (entry["split"], entry["examples"]) == ("test", 3)
    assert "3 distinct" in outcome.out


def test_reports_of_many_runs_do_not_show_private_scores_even_on_a_terminal(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = copy_of(told, tmp_path)
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    words = ("report", "runs=[run,again]")
    forms = ((), ("output=json",), ("to=csv",), ("to=latex",), ("to=html",))
    texts = []
    for form in forms:
        outcome = on_terminal(workspace, monkeypatch, *words, *form)
        texts.append((outcome.out + outcome.err).encode())
        assert b"perplexity" not in texts[-1]
    assert [found for text in texts if (found := said_in(told.numbers()[:-1], text))] == []
    assert b"private/metrics.json" in texts[0]
    assert "private/metrics.json" in workspace.refusal(*words, "metric=perplexity")


@pytest.mark.parametrize("output", ["table", "json"])
def test_trust_rule_8_report_prints_no_private_score_on_a_terminal(
    told: Told, tmp_path: Path, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = copy_of(told, tmp_path)
    outcome = on_terminal(workspace, monkeypatch, "report", "runs=run", f"output={output}")
    said = (outcome.out + outcome.err).encode()
    assert said_in([*told.numbers(), *rounded(told)], said) == []


def test_trust_rule_8_training_prints_no_private_score_on_a_terminal(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = copy_of(told, tmp_path)
    outcome = on_terminal(workspace, monkeypatch, "train", "resume=run")
    said = (outcome.out + outcome.err).encode()
    assert said_in([*told.numbers(), *rounded(told)], said) == []
    plain = re.sub(r"\x1b\[[\d;]*m", "", outcome.out)
    assert "private, in run/private/metrics.json" in " ".join(plain.split())


def on_terminal(workspace: Workspace, patch: pytest.MonkeyPatch, *words: str) -> Outcome:
    patch.setattr("tests.stories.tiny.io.StringIO", Terminal)
    outcome = workspace.run(*words)
    assert outcome.code == 0, outcome.err
    return outcome
