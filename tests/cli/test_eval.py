import fcntl
import json
import os
import re
import shutil
import stat
from pathlib import Path

import pytest

from tests.stories.tiny import (
    EVALUATION,
    METRICS,
    SETTING,
    TRAINING,
    Workspace,
    make_workspace,
    write_rows,
)

pytestmark = pytest.mark.slow

RUN = "run=run"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace whose folder ``run`` holds a finished private run that was not evaluated."""
    workspace = make_workspace(tmp_path_factory.mktemp("eval"))
    arguments = (*TRAINING, *EVALUATION, "privacy.noise_multiplier=1", "train.steps=1")
    quick = ("eval.enabled=false", "hydra.run.dir=run")
    workspace.finished(*arguments, *quick)
    return workspace


def scores(folder: Path) -> dict[tuple[str, str], dict]:
    entries = json.loads((folder / "metrics.json").read_text())["evaluations"]
    return {(entry["split"], entry["stage"]): entry for entry in entries}


def test_a_run_is_scored_with_its_own_settings_and_its_report_written_anew(
    workspace: Workspace,
) -> None:
    outcome = workspace.run("eval", RUN)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("e2e, split test, 2 distinct inputs\nprivate: not covered by ε\n")
    assert re.search(r"^perplexity +\d+\.\d{4}$", outcome.out, re.MULTILINE)
    assert "run/private/report.md" in outcome.out
    folder = workspace.root / "run"
    entry = scores(folder / "private")["test", "after"]
    assert (entry["examples"], entry["split_is_public"]) == (2, False)
    assert scores(folder)["test", "after"]["metrics"] == {}
    predictions = folder / "private" / "predictions.jsonl"
    assert stat.S_IMODE(predictions.stat().st_mode) == 0o600
    assert len(predictions.read_text().splitlines()) == 2
    assert "## Scores on E2E, test split" in (folder / "report.md").read_text()
    samples = folder / "private" / "samples.md"
    assert stat.S_IMODE(samples.stat().st_mode) == 0o600
    assert "name\\[Inn 1\\]" in samples.read_text()
    written = {"predictions.jsonl", "samples.md", "metrics.json", "report.md"}
    assert {str(path.relative_to(folder)) for path in outcome.new} == {
        "metrics.json",
        *(f"private/{name}" for name in written),
    }
    assert not (folder / "samples.md").exists()


def test_overrides_lead_and_an_entry_is_replaced_while_others_stay(workspace: Workspace) -> None:
    folder = workspace.root / "run"
    assert workspace.run("eval", RUN, "eval.split=validation").code == 0
    again = ("eval.split=validation", "eval.limit=1", "eval.split_is_public=true")
    outcome = workspace.run("eval", RUN, *again, "output=json")
    assert "replacing the run's scores and texts of split validation, and its report" in outcome.err
    (entry,) = json.loads(outcome.out)["evaluations"]
    assert (entry["examples"], entry["split_is_public"]) == (1, True)
    found = scores(folder)
    assert len(found["validation", "after"].pop("samples")) == 1
    assert found["validation", "after"] == entry
    assert ("test", "after") in found
    assert len((folder / "predictions.jsonl").read_text().splitlines()) == 1
    report = (folder / "report.md").read_text()
    assert report.count("## Scores on") == 2


def test_the_training_split_is_always_private_and_has_no_samples(workspace: Workspace) -> None:
    folder = workspace.root / "run" / "private"
    (folder / "samples.md").unlink(missing_ok=True)
    split = ("eval.split=train", "eval.split_is_public=true", "eval.limit=1")
    outcome = workspace.run("eval", RUN, *split, "output=json")
    assert json.loads(outcome.out)["evaluations"][0]["split_is_public"] is False
    assert (folder / "predictions.jsonl").exists()
    assert not (folder / "samples.md").exists()


def test_what_a_run_wrote_may_be_drawn_anew_by_another_strategy(workspace: Workspace) -> None:
    texts = {}
    for strategy in ("greedy", "nucleus"):
        outcome = workspace.run("eval", RUN, f"decode={strategy}", "decode.max_new_tokens=4")
        assert outcome.code == 0, outcome.err
        texts[strategy] = (workspace.root / "run/private/predictions.jsonl").read_text()
    assert texts["greedy"] != texts["nucleus"]


def test_a_model_without_a_run_is_scored_in_a_folder_of_its_own(workspace: Workspace) -> None:
    public = "eval.split_is_public=true"
    outcome = workspace.run("eval", *SETTING, *EVALUATION, public, "hydra.run.dir=alone")
    assert outcome.code == 0, outcome.err
    names = {path.name for path in (workspace.root / "alone").iterdir()}
    assert names == {".hydra", "metrics.json", "predictions.jsonl", "samples.md"}
    assert "perplexity" in outcome.out


INNS = ("task=e2e", "task.data_dir=inns", METRICS, "eval.split_is_public=true")
TEXTS = {f"name[Inn {i}], eatType[inn]": f"Inn {i} is an inn." for i in range(6)}


@pytest.mark.parametrize("ending", ["jsonl", "tsv", "txt"])
def test_a_file_of_outputs_is_scored_without_a_model(workspace: Workspace, ending: str) -> None:
    path = workspace.root / f"outputs.{ending}"
    data = workspace.root / "inns"
    data.mkdir(exist_ok=True)
    write_rows(data / "test.jsonl", list(TEXTS.items()))
    lines = {
        "jsonl": [json.dumps({"input": k, "prediction": v}) for k, v in TEXTS.items()],
        "tsv": ["MR\toutput", *(f'"{k}"\t"{v}"' for k, v in TEXTS.items())],
        "txt": list(TEXTS.values()),
    }
    path.write_text("\n".join(lines[ending]) + "\n")
    arguments = (*INNS, f"predictions=outputs.{ending}", "output=json")
    outcome = workspace.run("eval", *arguments)
    assert outcome.code == 0, outcome.err
    (entry,) = json.loads(outcome.out)["evaluations"]
    assert entry["metrics"] == pytest.approx({"bleu": 100.0, "rouge_l": 1.0})
    assert "likelihoods" in entry["not_computed"]["perplexity"]


def test_without_java_the_other_metrics_of_e2e_are_computed(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = workspace.root / "short.txt"
    path.write_text("An inn.\n" * 6)
    monkeypatch.setenv("PATH", str(workspace.root))
    own = ("task.metrics=[nist,meteor,bertscore,mean_length]", "metrics.bertscore_model=nowhere")
    arguments = (*SETTING, "predictions=short.txt", *own, "eval.split_is_public=true")
    outcome = workspace.run("eval", *arguments, "output=json")
    assert outcome.code == 0, outcome.err
    (entry,) = json.loads(outcome.out)["evaluations"]
    assert set(entry["metrics"]) == {"nist", "mean_length"}
    assert "Java" in entry["not_computed"]["meteor"]
    assert "metrics.bertscore_model=nowhere" in entry["not_computed"]["bertscore"]
    assert entry["not_computed"]["meteor"] in workspace.run("eval", *arguments).out


RECORDS = [f"name[Inn {i}], eatType[inn]" for i in range(6)]
FITTING = [json.dumps({"input": mr, "prediction": "A."}) for mr in RECORDS]


@pytest.mark.parametrize(
    ("file", "lines", "parts"),
    [
        ("few.txt", ["A."] * 5, ["few.txt", "5"]),
        ("other.jsonl", [*FITTING[:5], FITTING[5].replace("Inn", "Qzx")], ["other.jsonl:6"]),
        ("twice.jsonl", [*FITTING, FITTING[0]], ["twice.jsonl:7", "line 1"]),
        ("wide.tsv", ["MR\toutput", f"{RECORDS[0]}\tA.\tB."], ["wide.tsv:2"]),
        ("few.jsonl", FITTING[:5], ["few.jsonl"]),
        ("other.tsv", ["MR\toutput", "name[Qzx]\tA."], ["other.tsv:2"]),
    ],
)
def test_outputs_that_do_not_fit_the_split_are_refused_in_one_sentence_without_quoting(
    workspace: Workspace, file: str, lines: list[str], parts: list[str]
) -> None:
    data = workspace.root / "inns"
    data.mkdir(exist_ok=True)
    write_rows(data / "test.jsonl", [(mr, "A.") for mr in RECORDS])
    (workspace.root / file).write_text("\n".join(lines) + "\n")
    sentence = workspace.refusal("eval", "task=e2e", "task.data_dir=inns", f"predictions={file}")
    assert [part for part in parts if part not in sentence] == [], sentence
    assert "Qzx" not in sentence


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["run=nowhere"], ["run", "nowhere"]),
        (["run=data"], ["data", "config.yaml"]),
        ([RUN, "predictions=x.txt"], ["predictions"]),
        ([RUN, "eval.limt=1"], ["eval.limt", "eval.limit=1"]),
        ([RUN, "decode.max_new_tokens=128"], ["decode.max_new_tokens", "128"]),
        ([RUN, "model.path=model"], ["model.path"]),
        ([RUN, "task.metrics=[rouge_l,rouge_score_l]"], ["task.metrics", "rouge_l"]),
        ([*SETTING, "predictions=none.txt"], ["predictions", "none.txt"]),
        ([*SETTING, "task.data_dir=none"], ["task.data_dir", "none"]),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    workspace: Workspace, arguments: list[str], parts: list[str]
) -> None:
    sentence = workspace.refusal("eval", *arguments)
    assert [part for part in parts if part not in sentence] == [], sentence


def test_a_run_whose_training_has_not_ended_is_refused(workspace: Workspace) -> None:
    cut = workspace.root / "cut"
    cut.mkdir()
    shutil.copytree(workspace.root / "run" / "model", cut / "model")
    shutil.copy(workspace.root / "run" / "config.yaml", cut)
    ledger = (workspace.root / "run" / "ledger.jsonl").read_text().splitlines()
    (cut / "ledger.jsonl").write_text(ledger[0] + "\n")
    assert "dpft train resume=cut" in workspace.refusal("eval", "run=cut")


def test_a_run_that_another_process_writes_is_refused(workspace: Workspace) -> None:
    lock = workspace.root / "run" / "private" / "lock"
    descriptor = os.open(lock, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    sentence = workspace.refusal("eval", RUN)
    os.close(descriptor)
    assert sentence.startswith("run ")
