"""Your own data, from a file to a private model and its scores."""

import csv
import json
import shlex
import stat
from pathlib import Path

import pytest
import sklearn  # noqa: F401  # sets environment variables once; a run must set none

from dpft.evaluation.outputs import ModelOutputs
from tests.slowness import slow
from tests.stories.tiny import EVALUATION, MARKER, Workspace, make_workspace, own_entries

QUICK = (
    "model=tiny", "model.path=model", "task.max_length=64", "train.expected_batch_size=8",
    "train.steps=2", "privacy.eps=8", "privacy.accountant=rdp", *EVALUATION,
)  # fmt: skip
QA = (
    "task=custom", "task.data_dir=qa.csv", 'task.prompt="{question}\\nAnswer: "',
    'task.target="{answer}"',
)  # fmt: skip
HELD_OUT = "eval.held_out=0.3"
HALF = "eval.held_out=0.5"
FEW = ("privacy.records_per_unit=2", "train.expected_batch_size=2")
ROWS = 40


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with questions, a folder of texts with moods, and a finished run ``run``."""
    workspace = make_workspace(tmp_path_factory.mktemp("custom"))
    with (workspace.root / "qa.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["question", "answer", "customer_id"])
        table.writerows([f"{MARKER}, where is\n{n}?", f"In town {n}.", n % 20] for n in range(ROWS))
    write_moods(workspace.root / "moods")
    workspace.finished(*QA, *QUICK, HELD_OUT, "hydra.run.dir=run")
    return workspace


def write_moods(folder: Path) -> None:
    folder.mkdir()
    for split, count in (("train", ROWS), ("test", 4)):
        rows = ({"text": f"day {n}", "mood": ("good", "bad")[n % 2]} for n in range(count))
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def scored(folder: Path) -> list[dict]:
    return own_entries(folder)


def test_a_csv_becomes_a_private_model_with_scores_on_held_out_rows(workspace: Workspace) -> None:
    folder = workspace.root / "run"
    privacy = json.loads((folder / "privacy.json").read_text())
    assert privacy["epsilon"] <= 8
    assert privacy["plan"]["num_examples"] == ROWS  # those held out among them
    before, after = scored(folder)
    assert (before["split"], after["split"]) == ("held_out", "held_out")
    written = {"bleu", "rouge_l", "perplexity", "distinct_1", "distinct_2", "mean_length"}
    assert {*after["metrics"], *after["not_computed"]} == written
    assert not after["split_is_public"]
    key = folder / "private" / "held_out.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert "Scores on custom data, held_out split" in (folder / "report.md").read_text()


def test_no_public_file_holds_a_row(workspace: Workspace) -> None:
    folder = workspace.root / "run"
    public = [p for p in folder.rglob("*") if p.is_file() and "private" not in p.parts]
    assert not [path for path in public if MARKER.encode() in path.read_bytes()]
    assert MARKER in (folder / "private" / "predictions.jsonl").read_text()


@pytest.mark.slow
def test_a_run_is_scored_on_the_rows_that_it_held_out(workspace: Workspace) -> None:
    folder = workspace.root / "run"
    kept, at_the_end = (folder / "private" / "predictions.jsonl").read_text(), scored(folder)[1]
    outcome = workspace.run("eval", "run=run")
    assert outcome.code == 0, outcome.err
    assert scored(folder)[1] == at_the_end
    assert (folder / "private" / "predictions.jsonl").read_text() == kept


@pytest.mark.slow
def test_a_run_on_units_is_scored_on_the_units_that_it_held_out(workspace: Workspace) -> None:
    unit = (
        "privacy.unit=customer_id", "privacy.records_per_unit=2", "train.expected_batch_size=2",
        "privacy.eps=null", "privacy.noise_multiplier=1",
    )  # fmt: skip
    trained = workspace.run(
        "train", *QA, *QUICK, "eval.held_out=0.5", *unit, "hydra.run.dir=by_customer"
    )
    assert trained.code == 0, trained.err
    before = (workspace.root / "by_customer/private/predictions.jsonl").read_bytes()
    scored = workspace.run("eval", "run=by_customer")
    assert scored.code == 0, scored.err
    assert (workspace.root / "by_customer/private/predictions.jsonl").read_bytes() == before


@pytest.mark.slow
def test_one_file_as_a_whole_is_trained_on_and_the_report_says_that_nothing_is_scored(
    workspace: Workspace,
) -> None:
    text = ("task=custom", "task.data_dir=qa.csv", 'task.text="{question} {answer}"')
    outcome = workspace.run("train", *text, *QUICK, "hydra.run.dir=whole")
    assert outcome.code == 0, outcome.err
    assert outcome.err.count("no evaluation: ") == 1
    folder = workspace.root / "whole"
    (entry,) = scored(folder)
    assert (entry["metrics"], entry["examples"]) == ({}, 0)
    assert "eval.held_out=0.1" in entry["not_computed"]["perplexity"]
    assert "Not computed: perplexity" in (folder / "report.md").read_text()
    assert not list(folder.rglob("predictions*"))
    assert "eval.held_out=0.1" in workspace.refusal("eval", "run=whole")


@pytest.mark.slow
def test_a_folder_of_texts_with_classes_trains_a_classifier(workspace: Workspace) -> None:
    labels = ("task=custom", "task.data_dir=moods", 'task.text="{text}"', "task.label=mood")
    outcome = workspace.run(
        "train", *labels, "task.labels=[bad,good]", *QUICK, "hydra.run.dir=classes"
    )
    assert outcome.code == 0, outcome.err
    assert set(scored(workspace.root / "classes")[1]["metrics"]) == {"accuracy", "f1"}
    model = json.loads((workspace.root / "classes" / "model" / "config.json").read_text())
    assert model["id2label"] == {"0": "bad", "1": "good"}
    report = (workspace.root / "classes" / "report.md").read_text()
    assert "Method: linear_probe" in report and "method=full trains all weights" in report
    assert "method=full trains all weights" in outcome.err
    assert workspace.run("train", "resume=classes").code == 0


@pytest.mark.slow
def test_a_made_up_label_makes_no_synthetic_row(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ('task.prompt="{mood}: "', 'task.target="{text}"', "task.learn_prompt=true")
    labels = ("task=custom", "task.data_dir=moods", "task.label=mood", "task.labels=[bad,good]")
    trained = workspace.run(
        "train", *labels, *whole, *QUICK, "eval.enabled=false", "hydra.run.dir=labeled"
    )
    assert trained.code == 0, trained.err
    texts = ["bad: day 3", "pgative: day 4", "good: day 5"]
    monkeypatch.setattr(
        ModelOutputs, "texts", lambda *given: [texts[place] for place in given[4].places]
    )
    done = workspace.run("generate", "run=labeled", "num=3", "retries=1", "to=new.jsonl")
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in (workspace.root / "new.jsonl").read_text().splitlines()]
    assert rows == [{"mood": "bad", "text": "day 3"}, {"mood": "good", "text": "day 5"}]
    apart = (workspace.root / "new.unparsed.jsonl").read_text()
    assert [json.loads(line)["text"] for line in apart.splitlines()] == ["pgative: day 4"]
    assert json.loads((workspace.root / "new.privacy.json").read_text())["unparsed"] == 1


@pytest.mark.slow
def test_the_readmes_command_takes_a_messy_file(workspace: Workspace) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    command = readme[readme.index("dpft train task=custom") :].partition("\n```")[0]
    _, _, *words = shlex.split(command.replace("\\\n", " "))
    with (workspace.root / "reviews.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["customer_id", "review", "stars"])
        for n in range(400):
            review = ('"Good",\nshe said \N{GRINNING FACE}', "word " * 5000, "")[n % 3 * (n < 9)]
            table.writerow([f"c{n % 150}", review, ("bad", "good", "")[n % 2 + (n == 5)]])
    small = ("model.path=model", "train.micro_batch_size=16", "privacy.accountant=rdp")
    planned = workspace.run("plan", *words, *small, "output=json")
    assert planned.code == 0, planned.err
    answer = json.loads(planned.out)
    plan, parameters = answer["plan"], answer["parameters"]
    assert (plan["num_examples"], plan["unit"], plan["steps"]) == (150, "customer_id", 20)
    assert parameters["trainable"] == parameters["new"]
    assert "method: linear_probe (default" in planned.err
    refused = workspace.refusal("plan", *words, *small, "task.invalid=error")
    assert "line" in refused and "task.invalid=skip" in refused


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["task=custom", "task.data_dir=qa.csv"], ["one of task.prompt and task.target", "none"]),
        ([*QA, 'task.target="{reply}"'], ["column reply", "3 columns under other names"]),
        *slow(
            ([*QA, "task.target={answer}"],
             ["cannot read the argument", "'task.target=\"{answer}\"'"]),
            ([*QA, "task.data_dir=model", HELD_OUT], ["task.data_dir=model", "train split"]),
            (["task=custom", "task.data_dir=qa.csv", "task.messages=question"],
             ["task.messages", "question"]),
            (["task=custom", "task.data_dir=moods", 'task.text="{text}"', "task.label=mood",
              "task.labels=[x,y]"], ["lines 1, 2, 3, ", " 10 and others: the column mood",
                                     "must be one of 0 (x), 1 (y)"]),
            ([*QA, 'task.text="{answer}"'], ["exactly one of", "task.prompt and task.target and"]),
            ([*QA, 'task.target="{reply"'], ["task.target", "in braces"]),
            ([*QA, "task.data_dir=none.csv"], ["task.data_dir", "'none.csv'"]),
            ([*QA, HELD_OUT, "eval.split=validation"],
             ["eval.held_out=0.3 and eval.split=validation"]),
            ([*QA, "eval.split=validation"], ["has no validation split", "eval.held_out=0.1"]),
        ),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_one_sentence_that_quotes_no_row(
    workspace: Workspace, arguments: list[str], parts: list[str]
) -> None:
    sentence = workspace.refusal("train", *QUICK, *arguments)
    assert [part for part in parts if part not in sentence] == [], sentence
    assert MARKER not in sentence


@pytest.mark.slow
def test_held_out_records_need_the_run_that_held_them_out(workspace: Workspace) -> None:
    given = (*QA, HELD_OUT, "model=tiny", "model.path=model", "task.max_length=64", *EVALUATION)
    assert "run=RUN" in workspace.refusal("eval", *given)
    assert "predictions" in workspace.refusal("eval", *given, "predictions=x.txt")
