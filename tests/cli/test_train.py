import gzip
import json
import logging
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoConfig

from tests.slowness import slow
from tests.stories.tiny import (
    EVALUATION,
    STEPS,
    TRAINING,
    Outcome,
    Workspace,
    make_workspace,
    own_entries,
    write_rows,
)

PRIVATE = (*TRAINING, "privacy.noise_multiplier=1", STEPS)
PUBLIC_LINES = re.compile(
    r"WARNING: delta = 0.0125 is above 0.001: .*"
    r"|INFO: (Clipping engine: book_keeping \(auto\)"
    r"|training: 3 steps; epsilon is the upper bound by rdp"
    r"|evaluating (before|after) fine-tuning|evaluating: \d+0 % of (predictions|likelihoods)"
    r"|steps 1 to 3 show no progress: the times of fewer than ten steps would tell of their batches"
    r"|scores and predictions: .*|run: .*)"
)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return make_workspace(tmp_path_factory.mktemp("train"))


@pytest.fixture(scope="module")
def config_reads() -> Iterator[list[str]]:
    """The modules of dpft that had a config.json read, of each reading."""
    read, readers = AutoConfig.from_pretrained, []

    def noted(*arguments: Any, **settings: Any) -> Any:
        caller = sys._getframe(1).f_globals["__name__"]
        if caller.startswith("dpft."):
            readers.append(caller)
        return read(*arguments, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AutoConfig, "from_pretrained", noted)
        yield readers


@pytest.fixture(scope="module")
def outcome(workspace: Workspace, config_reads: list[str]) -> Outcome:
    return workspace.run("train", *PRIVATE, *EVALUATION, "hydra.run.dir=run")


@pytest.fixture(scope="module")
def folder(workspace: Workspace, outcome: Outcome) -> Path:
    assert outcome.code == 0, outcome.err
    return workspace.root / "run"


@pytest.mark.slow
def test_a_run_reads_the_models_config_once(outcome: Outcome, config_reads: list[str]) -> None:
    assert outcome.code == 0, outcome.err
    assert config_reads == ["dpft.models.architecture"]


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
    assert "model/README.md" in names


def test_standard_output_is_left_to_results_and_stderr_to_public_lines(outcome: Outcome) -> None:
    kinds = {line.partition(": ")[0] for line in outcome.out.splitlines()}
    assert kinds == {"trained", "privacy", "scores", "records", "report", "next"}
    for line in outcome.err.splitlines():
        assert PUBLIC_LINES.fullmatch(line), line


@pytest.mark.slow
def test_the_results_say_what_the_run_has_come_to_and_a_resumed_run_says_the_same(
    folder: Path, workspace: Workspace, outcome: Outcome
) -> None:
    results = outcome.out.splitlines()
    assert results[0].startswith("trained: model (gpt2) by method full on e2e (local files), 40 ex")
    assert results[1].startswith("privacy: epsilon = ")
    assert results[2:] == [
        "scores: e2e, split test: private, in run/private/metrics.json",
        "records: what was left out, cut and held out is in run/private/data_summary.md (private)",
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
    assert (record["model"], record["data"]) == ("model (gpt2)", "e2e (local files)")
    for name in ("report.md", "report.html"):
        text = (folder / name).read_text(encoding="utf-8")
        assert f"model (gpt2) on e2e (local files), method full, begun {record['date']}" in text
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
def test_scores_on_local_files_are_kept_private_as_their_predictions_are(
    folder: Path,
) -> None:
    for entry in json.loads((folder / "metrics.json").read_text())["evaluations"]:
        assert entry["metrics"] == {} and "private/metrics.json" in entry["note"]
    evaluations = own_entries(folder)
    assert [entry["stage"] for entry in evaluations] == ["before", "after"]
    for entry in evaluations:
        assert entry["split_is_public"] is False
        assert "not covered by epsilon" in entry["note"]
        assert set(entry["metrics"]) == {"bleu", "rouge_l", "perplexity"}
    assert (folder / "private" / "predictions.jsonl").exists()


@pytest.mark.slow
def test_the_configuration_is_saved_as_given(folder: Path) -> None:
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert saved["task"]["data_dir"] == "data"
    assert saved["privacy"]["noise_multiplier"] == 1.0
    assert saved["train"]["steps"] == 3


@pytest.mark.slow
def test_training_into_a_folder_that_has_a_ledger_is_refused(
    folder: Path, workspace: Workspace
) -> None:
    ledger = (folder / "ledger.jsonl").read_bytes()
    sentence = workspace.refusal("train", *PRIVATE, "hydra.run.dir=run")
    assert "ledger.jsonl exists" in sentence and "hydra.run.dir=DIR" in sentence
    assert (folder / "ledger.jsonl").read_bytes() == ledger


@pytest.mark.slow
def test_a_run_without_privacy_says_so_first_and_has_no_epsilon(workspace: Workspace) -> None:
    recipe = ("experiment=demo", "privacy=none")  # the recipe's own epsilon gives way
    arguments = (*TRAINING[:-1], *recipe, "train.steps=1", "eval.enabled=false")
    outcome = workspace.run("train", *arguments, "hydra.run.dir=plain")
    assert outcome.code == 0
    assert outcome.err.startswith("WARNING: privacy=none: this run is not private\n")
    first, *rest = (workspace.root / "plain" / "report.md").read_text().splitlines()
    assert first.startswith("**NOT PRIVATE")
    assert "ε" not in "".join(rest)
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
        ([EPS, "privacy.epz=3"], ["privacy.epz", "did you mean privacy.eps=3?"]),
        (["privacy.eps=0"], ["privacy.eps must be above 0", "got 0"]),
        ([], ["privacy.eps and privacy.noise_multiplier", "neither", "privacy=none"]),
        *slow(
            ([EPS, "train.batch_size=3"], ["train.expected_batch_size"]),
            ([EPS, "privacy.eps=abc"], ["privacy.eps must be float", '"abc"']),
            ([EPS, "privacy.delta=0.03"], ["privacy.delta", "0.025", "allow_large_delta=true"]),
            ([EPS, "train.expected_batch_size=41"], ["at most the 40 examples, got 41"]),
            ([EPS, "train.epochs=1", "train.steps=2"], ["train.epochs and train.steps", "both"]),
            ([EPS, "privacy.engine=warp"], ["privacy.engine must be auto | ", '"warp"']),
            (
                [EPS, "task.max_length=500"],
                ["task.max_length", "128 positions, got 500", "set task.max_length=128"],
            ),
            ([EPS, "model.path=none"], ["model.path=none", "model=tiny"]),
            (["privacy=none", EPS], ["privacy=none", "no privacy.accountant", "drop one"]),
            ([EPS, "eps=3"], ["unknown configuration key eps", "privacy.eps"]),
            ([EPS, "train.lr=3"], ["train.lr", "train.learning_rate"]),
            ([EPS, "train.steps=1.5"], ["train.steps must be int", "1.5"]),
            (["privacy.eps=-1"], ["privacy.eps must be above 0", "got -1"]),
            (["privacy.eps=nan"], ["privacy.eps must be a finite number, got NaN"]),
            (["privacy.eps=inf"], ["privacy.eps must be a finite number, got Infinity"]),
            ([EPS, "privacy.noise_multiplier=1"], ["privacy.noise_multiplier", "both"]),
            ([EPS, "privacy.delta=0"], ["privacy.delta must be above 0, got 0"]),
            ([EPS, "train.expected_batch_size=0"], ["train.expected_batch_size", "at least 1"]),
            ([EPS, "train.steps=0"], ["train.steps must be at least 1", "got 0"]),
            ([EPS, "train.epochs=0"], ["train.epochs must be above 0, got 0"]),
            ([EPS, "train.epochs=-1"], ["train.epochs must be above 0, got -1"]),
            ([EPS, "train.learning_rate=-1"], ["train.learning_rate must be at least 0, got -1"]),
            ([EPS, "train.learning_rate=inf"], ["train.learning_rate must be a finite number"]),
            ([EPS, "privacy.clipping=warp"], ["privacy.clipping must be flat | ", '"warp"']),
            ([EPS, "task.metrics=[warp]"], ["task.metrics must be one of accuracy", "'warp'"]),
            ([EPS, "decode.max_new_tokens=128"], ["decode.max_new_tokens", "128", "lower it"]),
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence_before_anything_is_written(
    workspace: Workspace, arguments: list[str], parts: list[str]
) -> None:
    sentence = workspace.refusal("train", *TRAINING, *arguments)
    assert [part for part in parts if part not in sentence] == [], sentence


@pytest.mark.slow
def test_an_epsilon_out_of_reach_is_refused(workspace: Workspace) -> None:
    target = ("privacy.eps=1e-9", "privacy.delta=1e-30")
    assert "privacy.eps=1e-09 is out of reach" in workspace.refusal(
        "train", *TRAINING, *target, "train.steps=1000000"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ('{"mr": "name[A]", "ref": "a"}\nSECRET\n', ["train.jsonl, line 2", "JSON object"]),
        *slow(
            ("", ["holds no rows", "task.data_dir=bad"]),
            ('{"mr": "name[SECRET]"}\n', ["train.jsonl, line 1", "human_reference"]),
            (None, ["task.data_dir=bad holds no train split", "train.csv"]),
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
def test_a_damaged_archive_is_refused(workspace: Workspace) -> None:
    torn = workspace.root / "torn"
    torn.mkdir()
    write_rows(torn / "whole.jsonl", [("name[A]", "a")])
    packed = gzip.compress((torn / "whole.jsonl").read_bytes())
    (torn / "train.jsonl.gz").write_bytes(packed[:-8])
    sentence = workspace.refusal("train", *TRAINING, EPS, "task.data_dir=torn")
    assert "train.jsonl.gz" in sentence


@pytest.mark.slow
def test_a_model_without_weights_is_refused_with_the_way_out(workspace: Workspace) -> None:
    bare = workspace.root / "bare"
    bare.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (bare / name).write_bytes((workspace.root / "model" / name).read_bytes())
    given = ("privacy.noise_multiplier=1", "privacy.delta=1e-3", STEPS, "model.path=bare")
    arguments = (*TRAINING, *given)
    sentence = workspace.refusal("train", *arguments, "eval.enabled=false")
    assert "model.path=bare holds no weights" in sentence and "model.init=random" in sentence


@pytest.mark.slow
def test_a_model_that_cannot_be_reached_is_refused_with_the_ways_out(
    workspace: Workspace,
) -> None:
    sentence = workspace.refusal("train", "task=e2e", "model=gpt2", EPS)
    assert all(way in sentence for way in ("model.path=DIR", "task.data_dir=DIR", "model=tiny"))


def test_loggers_of_libraries_do_not_speak(outcome: Outcome) -> None:
    assert logging.getLogger("transformers").getEffectiveLevel() >= logging.ERROR
    assert "Loading weights" not in outcome.err and "Writing model" not in outcome.err
