import json
import re
import shutil
from pathlib import Path

import pytest

from tests.slowness import slow
from tests.stories.tiny import (
    EVALUATION,
    STEPS,
    TRAINING,
    Outcome,
    Workspace,
    make_workspace,
)

PRIVATE = (*TRAINING, "privacy.noise_multiplier=1", STEPS)
PUBLIC_LINES = re.compile(
    r"WARNING: delta = 0.0125 is above 0.001: .*"
    r"|INFO: (Clipping engine: book_keeping \(auto\)"
    r"|training: 3 steps; epsilon is the upper bound by rdp"
    r"|evaluating (before|after) fine-tuning|evaluating: \d+0 % of (predictions|likelihoods)"
    r"|steps 1 to 3: no progress is shown \(durations of fewer than ten steps are private\)"
    r"|scores and predictions: .*|run: .*)"
)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return make_workspace(tmp_path_factory.mktemp("train"))


@pytest.fixture(scope="module")
def outcome(workspace: Workspace) -> Outcome:
    return workspace.run("train", *PRIVATE, *EVALUATION, "hydra.run.dir=run")


@pytest.fixture(scope="module")
def folder(workspace: Workspace, outcome: Outcome) -> Path:
    assert outcome.code == 0, outcome.err
    return workspace.root / "run"


def public_files(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and "private" not in path.relative_to(folder).parts
    ]


@pytest.mark.slow
def test_a_run_leaves_the_files_of_a_run_folder(folder: Path) -> None:
    names = {str(path.relative_to(folder)) for path in public_files(folder)}
    assert {name for name in names if "/" not in name} == {
        "config.yaml",
        "ledger.jsonl",
        "metrics.json",
        "privacy.json",
        "report.html",
        "report.md",
    }
    assert {".hydra/overrides.yaml", "model/model.safetensors", "model/tokenizer.json"} <= names


def test_standard_output_is_left_to_results_and_stderr_to_public_lines(outcome: Outcome) -> None:
    kinds = {line.partition(": ")[0] for line in outcome.out.splitlines()}
    assert kinds == {"trained", "privacy", "scores", "data", "report", "next"}
    for line in outcome.err.splitlines():
        assert PUBLIC_LINES.fullmatch(line), line


@pytest.mark.slow
def test_the_results_say_what_the_run_has_come_to_and_a_resumed_run_says_the_same(
    folder: Path, workspace: Workspace, outcome: Outcome
) -> None:
    results = outcome.out.splitlines()
    assert results[0].startswith("trained: model (gpt2) by method full on E2E (local files), 40 ex")
    assert results[1].startswith("privacy: epsilon = ")
    assert results[2:] == [
        "scores: e2e, split test: private, in run/private/metrics.json",
        "data: run/private/data_summary.md (private: skipped, cut and held-out records)",
        "report: run/report.md, run/report.html",
        "next: dpft eval run=run",
        "next: dpft generate run=run prompts=FILE",
        "next: dpft report runs=run",
    ]
    again = workspace.run("train", "resume=run")
    assert again.code == 0 and again.out.splitlines() == results


@pytest.mark.slow
def test_public_files_date_the_run_and_name_what_it_was_made_of(folder: Path) -> None:
    record = json.loads((folder / "privacy.json").read_text())
    assert record["date"] == json.loads((folder / "private/begun.json").read_text())["date"]
    assert set(record["versions"]) == {"dpft", "torch", "transformers"}
    assert (record["model"], record["data"]) == ("model (gpt2)", "E2E (local files)")
    for name in ("report.md", "report.html"):
        text = (folder / name).read_text(encoding="utf-8")
        assert "model (gpt2) fine-tuned on E2E" in text
        origin = f"Data: E2E (local files) · Method: full · Started: {record['date']} (UTC) · dpft"
        assert f"{origin} {record['versions']['dpft']}" in text
        assert f"torch {record['versions']['torch']}" in text


@pytest.mark.slow
def test_a_run_that_goes_on_another_day_keeps_the_day_on_which_it_was_begun(
    folder: Path, workspace: Workspace
) -> None:
    copy = workspace.root / "later"
    shutil.copytree(folder, copy)
    begun = json.loads((copy / "private/begun.json").read_text())
    (copy / "private/begun.json").write_text(json.dumps({**begun, "date": "2001-02-03"}))
    (copy / "privacy.json").unlink()
    outcome = workspace.run("train", "resume=later")
    assert outcome.code == 0, outcome.err
    assert json.loads((copy / "privacy.json").read_text())["date"] == "2001-02-03"


@pytest.mark.slow
def test_public_files_name_no_path_that_the_user_did_not_give(
    folder: Path, workspace: Workspace
) -> None:
    for path in public_files(folder):
        assert str(workspace.root).encode() not in path.read_bytes(), path
        assert str(Path.home() / "").encode() not in path.read_bytes(), path


@pytest.mark.slow
def test_training_into_a_folder_that_has_a_ledger_is_refused(
    folder: Path, workspace: Workspace
) -> None:
    ledger = (folder / "ledger.jsonl").read_bytes()
    sentence = workspace.refusal("train", *PRIVATE, "hydra.run.dir=run")
    assert "ledger.jsonl" in sentence and "hydra.run.dir=DIR" in sentence
    assert (folder / "ledger.jsonl").read_bytes() == ledger


@pytest.mark.slow
def test_a_run_without_privacy_says_so_first_and_has_no_epsilon(workspace: Workspace) -> None:
    recipe = ("experiment=demo", "privacy=none")  # the recipe's own epsilon gives way
    arguments = (*TRAINING[:-1], *recipe, "train.steps=1", "eval.enabled=false")
    outcome = workspace.run("train", *arguments, "hydra.run.dir=plain")
    assert outcome.code == 0
    assert outcome.err.startswith("WARNING: privacy=none: this run is not private\n")
    text = (workspace.root / "plain" / "report.md").read_text()
    assert "\n> **NOT PRIVATE" in text and "ε" not in text
    record = json.loads((workspace.root / "plain" / "privacy.json").read_text())
    assert record["private"] is False and "epsilon" not in record


@pytest.mark.slow
def test_noise_that_drowns_any_signal_is_warned_of_before_training_and_in_the_record(
    workspace: Workspace,
) -> None:
    arguments = (*PRIVATE[:-1], "train.steps=1", "eval.enabled=false")
    drowned = "the noise drowns any signal"
    noise = ("privacy.noise_multiplier=1e5", "hydra.run.dir=drowned")
    outcome = workspace.run("train", *arguments, *noise)
    assert outcome.code == 0
    assert outcome.err.index(f"WARNING: {drowned}") < outcome.err.index("steps 1 to 1")
    record = json.loads((workspace.root / "drowned" / "privacy.json").read_text())
    assert [warning.startswith(drowned) for warning in record["warnings"]].count(True) == 1


EPS = "privacy.eps=3"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([EPS, "privacy.epz=3"], ["privacy.epz", "privacy.eps=3"]),
        ([], ["privacy.eps", "privacy.noise_multiplier"]),
        ([EPS, "privacy.eps=abc"], ["privacy.eps", "abc"]),
        *slow(
            ([EPS, "privacy.delta=0.03"], ["privacy.delta", "0.025"]),
            ([EPS, "train.expected_batch_size=41"], ["train.expected_batch_size", "40", "41"]),
            ([EPS, "train.epochs=1", "train.steps=2"], ["train.epochs", "train.steps"]),
            ([EPS, "task.max_length=500"], ["task.max_length", "task.max_length=128"]),
            ([EPS, "decode.max_new_tokens=128"], ["decode.max_new_tokens", "128"]),
            ([EPS, "model.path=none"], ["model.path=none"]),
            (["privacy=none", EPS], ["privacy=none", "privacy.accountant"]),
            ([EPS, "privacy.noise_multiplier=1"], ["privacy.noise_multiplier", "privacy.eps"]),
            ([EPS, "task.metrics=[warp]"], ["task.metrics", "warp"]),
            (
                ["privacy.eps=1e-9", "privacy.delta=1e-30", "train.steps=1000000"],
                ["privacy.eps", "1e-09"],
            ),
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence_before_anything_is_written(
    workspace: Workspace, arguments: list[str], parts: list[str]
) -> None:
    sentence = workspace.refusal("train", *TRAINING, *arguments)
    assert [part for part in parts if part not in sentence] == [], sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ('{"mr": "name[A]", "ref": "a"}\nSECRET\n', ["train.jsonl, line 2"]),
        *slow(
            ("", ["task.data_dir", "bad"]),
            ('{"mr": "name[SECRET]"}\n', ["train.jsonl, line 1", "human_reference"]),
            (None, ["task.data_dir", "bad"]),
        ),
    ],
)
def test_a_bad_data_file_is_named_with_its_line_and_never_quoted(
    workspace: Workspace, content: str | None, parts: list[str]
) -> None:
    bad = workspace.root / "bad"
    bad.mkdir(exist_ok=True)
    (bad / "train.jsonl").unlink(missing_ok=True)
    if content is not None:
        (bad / "train.jsonl").write_text(content)
    sentence = workspace.refusal("train", *TRAINING, EPS, "task.data_dir=bad")
    assert [part for part in parts if part not in sentence] == [], sentence
    assert "SECRET" not in sentence


@pytest.mark.slow
def test_a_model_without_weights_is_refused_with_the_way_out(workspace: Workspace) -> None:
    bare = workspace.root / "bare"
    bare.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (bare / name).write_bytes((workspace.root / "model" / name).read_bytes())
    given = ("privacy.noise_multiplier=1", "privacy.delta=1e-3", STEPS, "model.path=bare")
    arguments = (*TRAINING, *given)
    sentence = workspace.refusal("train", *arguments, "eval.enabled=false")
    assert "model.path=bare" in sentence and "model.init=random" in sentence


@pytest.mark.slow
def test_a_model_that_cannot_be_reached_is_refused_with_the_ways_out(
    workspace: Workspace,
) -> None:
    sentence = workspace.refusal("train", "task=e2e", "model=gpt2", EPS)
    assert all(way in sentence for way in ("model.path=DIR", "task.data_dir=DIR", "model=tiny"))
