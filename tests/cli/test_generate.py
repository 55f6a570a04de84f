"""``dpft generate`` on runs of the tiny model."""

import csv
import fcntl
import json
import os
import shutil

import pytest
from pyarrow import parquet

from dpft.data.sources import load_examples
from dpft.tasks.e2e import E2ETask
from tests.stories.tiny import TRAINING, Workspace, make_workspace, write_rows

pytestmark = pytest.mark.slow

QUICK = ("train.steps=1", "eval.enabled=false")
PRIVATE = (*TRAINING, "privacy.noise_multiplier=1", *QUICK)
SHORT = "decode.max_new_tokens=5"
MRS = ["name[Cafe 1], eatType[pub]", "name[Cafe 2]", "name[Cafe 1], eatType[pub]"]


LEARNED = (
    "task=custom", "task.data_dir=pairs.csv", "task.max_length=24", "task.learn_prompt=true",
    'task.prompt="{a} "', 'task.target="{b}"', "model=tiny", "model.path=model", *TRAINING[5:],
)  # fmt: skip


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with a finished run of each kind, and prompts."""
    workspace = make_workspace(tmp_path_factory.mktemp("generate"))
    root = workspace.root
    write_rows(root / "prompts.jsonl", [(mr, "") for mr in MRS])
    rows = "".join(f"Place {i},is a pub.\n" for i in range(40))
    (root / "pairs.csv").write_text(f"a,b\n{rows}")
    (root / "first.csv").write_text("a\nPlace 41\nPlace 42\n")
    runs = {
        "run": PRIVATE,
        "seeded": (*PRIVATE, "privacy.noise_seed=1"),
        "ordinary": (*TRAINING[:-1], "privacy=none", *QUICK[:2]),
        "learned": (*LEARNED, "privacy.noise_multiplier=1", *QUICK),
    }
    for name, arguments in runs.items():
        workspace.finished(*arguments, SHORT, f"hydra.run.dir={name}")
    return workspace


def generate(workspace: Workspace, *arguments: str, to: str) -> tuple[list[dict], dict]:
    """Run the command, which must succeed and write nothing but its two files; return those."""
    outcome = workspace.run("generate", *arguments, f"to={to}.jsonl")
    assert outcome.code == 0, outcome.err
    assert outcome.out == ""
    written = {path.relative_to(workspace.root).as_posix() for path in outcome.new}
    assert written == {f"{to}.jsonl", f"{to}.privacy.json"}
    lines = (workspace.root / f"{to}.jsonl").read_text().splitlines()
    statement = json.loads((workspace.root / f"{to}.privacy.json").read_text())
    return [json.loads(line) for line in lines], statement


PROMPTS = ("run=run", "prompts=prompts.jsonl")


def test_records_are_rows_of_the_task_in_the_order_of_the_prompts(workspace: Workspace) -> None:
    records, _ = generate(workspace, *PROMPTS, to="rows")
    assert [record["meaning_representation"] for record in records] == MRS
    assert all(set(r) == {"meaning_representation", "human_reference"} for r in records)
    assert records[0]["human_reference"] != records[2]["human_reference"]
    again = workspace.root / "again"
    again.mkdir()
    shutil.copy(workspace.root / "rows.jsonl", again / "train.jsonl")
    read = load_examples(E2ETask(name="e2e", data_dir=str(again)), "train")
    assert [example.target for example in read] == [r["human_reference"] for r in records]


def test_the_statement_is_the_runs_own_promise(workspace: Workspace) -> None:
    _, statement = generate(workspace, *PROMPTS, to="stated")
    privacy = json.loads((workspace.root / "run" / "privacy.json").read_text())
    assert (statement["private"], statement["guarantee"]) == (privacy["private"], privacy)
    assert (statement["run"], statement["records"], statement["schema_version"]) == ("run", 3, 2)
    assert statement["decode"]["strategy"] == "nucleus"
    assert statement["decode"]["max_new_tokens"] == 5
    same, prompts = statement["notes"]
    assert "post-processing" in same and "the same guarantee as the model (epsilon = " in same
    assert "epsilon does not cover the prompts" in prompts


@pytest.mark.parametrize(("run", "why"), [("seeded", "noise_seed"), ("ordinary", "privacy=none")])
def test_a_run_that_is_not_private_says_so_in_the_statement_and_aloud(
    workspace: Workspace, run: str, why: str
) -> None:
    outcome = workspace.run("generate", f"run={run}", "prompts=prompts.jsonl", f"to={run}.jsonl")
    assert outcome.code == 0, outcome.err
    statement = json.loads((workspace.root / f"{run}.privacy.json").read_text())
    assert statement["private"] is False
    assert "NOT PRIVATE" in statement["notes"][0] and why in statement["notes"][0]
    assert "WARNING: NOT PRIVATE" in outcome.err


def test_the_seed_and_not_the_batches_say_what_is_written(workspace: Workspace) -> None:
    one, _ = generate(workspace, *PROMPTS, "decode.seed=1", to="one")
    alone, _ = generate(workspace, *PROMPTS, "decode.seed=1", "batch_size=1", to="alone")
    two, _ = generate(workspace, *PROMPTS, "decode.seed=2", to="two")
    assert one == alone != two


def test_beam_writes_equal_texts_after_equal_prompts(workspace: Workspace) -> None:
    records, statement = generate(workspace, *PROMPTS, "decode=beam", to="beam")
    assert records[0] == records[2]
    assert statement["decode"]["num_beams"] == 5


def table(workspace: Workspace, file: str) -> list[dict[str, str]]:
    with (workspace.root / file).open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_where_the_prompt_was_learned_whole_rows_come_from_nothing_in_any_format(
    workspace: Workspace,
) -> None:
    asked = ("generate", "run=learned", "num=7", "retries=1")
    made = {to: workspace.run(*asked, f"to={to}") for to in ("a.csv", "b.csv", "c.parquet")}
    assert [outcome.code for outcome in made.values()] == [0, 0, 0], made
    rows = table(workspace, "a.csv")
    assert [list(row) for row in rows] == [["a", "b"]] * len(rows)
    assert rows == table(workspace, "b.csv")
    assert rows == parquet.read_table(workspace.root / "c.parquet").to_pylist()
    statement = json.loads((workspace.root / "a.privacy.json").read_text())
    assert (statement["prompts"], statement["records"], len(statement["notes"])) == ("none", 7, 1)
    assert statement["unparsed"] == 7 - len(rows)
    # as long as the records trained on, where the run itself writes 5 tokens
    assert statement["decode"]["max_new_tokens"] == 23
    assert "of 7 contain a, b at the first attempt" in made["a.csv"].err


def test_a_learned_prompt_may_also_be_given(workspace: Workspace) -> None:
    records, statement = generate(workspace, "run=learned", "prompts=first.csv", to="given")
    assert [record["a"] for record in records] == ["Place 41", "Place 42"]
    assert statement["prompts"] == "the user's"


def test_texts_of_which_none_is_a_row_are_kept_and_the_command_fails(workspace: Workspace) -> None:
    other = ('task.prompt="{a} "', 'task.target="Qzx {b}"')
    outcome = workspace.run("generate", "run=learned", "num=3", "retries=1", *other, "to=none.csv")
    assert outcome.code == 1
    assert "0 of 3" in outcome.err
    written = {path.name for path in outcome.new}
    assert written == {"none.privacy.json", "none.unparsed.jsonl"}
    assert len((workspace.root / "none.unparsed.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["run=run"], ["prompts", "num"]),
        ([*PROMPTS, "num=3"], ["prompts", "num"]),
        (["run=learned", "num=3", "task.learn_prompt=false"], ["task.learn_prompt"]),
        (["run=run", "num=3", "decode=greedy"], ["decode.strategy", "greedy"]),
        (["run=run", "prompts=none.jsonl"], ["prompts", "none.jsonl"]),
        (["run=run", "prompts=model"], ["prompts", "model"]),
        ([*PROMPTS, "to=prompts.jsonl"], ["to", "prompts.jsonl"]),
        ([*PROMPTS, "decode.max_new_tokens=128"], ["decode.max_new_tokens", "128"]),
        ([*PROMPTS, "model.path=model"], ["model"]),
        (["run=nowhere", "num=3"], ["run", "nowhere"]),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    workspace: Workspace, arguments: list[str], parts: list[str]
) -> None:
    sentence = workspace.refusal("generate", *arguments)
    assert [part for part in parts if part not in sentence] == [], sentence


def test_a_run_that_another_process_writes_is_refused(workspace: Workspace) -> None:
    descriptor = os.open(workspace.root / "run" / "private" / "lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    sentence = workspace.refusal("generate", *PROMPTS, "to=busy.jsonl")
    os.close(descriptor)
    assert sentence.startswith("run ")
