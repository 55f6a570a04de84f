"""A folder of texts, from its files to a private model and texts from it."""

import gzip
import json
from pathlib import Path

import pytest
from transformers import T5ForConditionalGeneration

from tests.models import small
from tests.stories.tiny import EVALUATION, MARKER, Workspace, make_workspace, own_entries

pytestmark = pytest.mark.slow

TRAINING = (
    "task=corpus", "model=tiny", "model.path=model", "task.max_length=32",
    "train.expected_batch_size=8", "train.steps=3", "privacy.noise_multiplier=1",
    "privacy.accountant=rdp",
    *EVALUATION,
)  # fmt: skip
LINES = 40


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with a folder ``texts`` of lines and rows, and a finished run ``run``."""
    workspace = make_workspace(tmp_path_factory.mktemp("corpus"))
    folder = workspace.root / "texts"
    (folder / "old").mkdir(parents=True)
    lines = [f"{MARKER} went to town {n}.\n\n" for n in range(LINES)]
    (folder / "notes.txt").write_text("".join(lines[:20]))
    (folder / "old" / "notes.txt.gz").write_bytes(gzip.compress("".join(lines[20:30]).encode()))
    rows = [json.dumps({"text": line.strip()}) + "\n" for line in lines[30:]]
    (folder / "rows.jsonl").write_text("".join(rows))
    outcome = workspace.run(
        "train", *TRAINING, "task.data_dir=texts", "eval.held_out=0.3", "hydra.run.dir=run"
    )
    assert outcome.code == 0, outcome.err
    return workspace


def test_a_folder_of_texts_becomes_a_private_model_with_a_score(workspace: Workspace) -> None:
    folder = workspace.root / "run"
    privacy = json.loads((folder / "privacy.json").read_text())
    assert privacy["epsilon"] <= 8
    assert privacy["plan"]["num_examples"] == LINES
    assert privacy["plan"]["unit_definition"].startswith("one line of a text file, or row ")
    _, after = own_entries(folder)
    assert [*after["metrics"]] == ["perplexity", "token_accuracy"]
    assert (after["split"], after["split_is_public"]) == ("held_out", False)


def test_no_public_file_holds_a_text(workspace: Workspace) -> None:
    files = [path for path in (workspace.root / "run").rglob("*") if path.is_file()]
    public = [path for path in files if "private" not in path.parts]
    assert public and not [path for path in public if MARKER.encode() in path.read_bytes()]


def test_a_model_writes_texts_from_nothing_in_rows_that_can_be_read(workspace: Workspace) -> None:
    to = workspace.root / "written" / "rows.jsonl"
    outcome = workspace.run("generate", "run=run", "num=3", f"to={to}")
    assert outcome.code == 0, outcome.err
    rows = [json.loads(line) for line in to.read_text().splitlines()]
    assert rows and all([*row] == ["text"] for row in rows)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f"fine\n{MARKER}\xff\n".encode("latin-1"), "bad.txt, line 2: not UTF-8 text"),
        (f"fine\n\n{MARKER}\0\n".encode(), "bad.txt, line 3: not text"),
    ],
)
def test_a_file_that_is_not_text_is_named_by_line_and_nothing_is_spent(
    workspace: Workspace, tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    sentence = workspace.refusal("train", *TRAINING, f"task.data_dir={tmp_path}")
    assert words in sentence and MARKER not in sentence


def test_a_text_file_has_no_column_to_be_a_unit(workspace: Workspace) -> None:
    unit = ("privacy.unit=who", "privacy.records_per_unit=2")
    sentence = workspace.refusal("train", *TRAINING, "task.data_dir=texts", *unit)
    assert "notes.txt, line 1: privacy.unit" in sentence


def test_a_model_of_hidden_spans_is_scored_and_fills_the_gaps_of_a_users_texts(
    tmp_path: Path,
) -> None:
    """All that the end of the run advises works: eval, generate and report."""
    workspace = Workspace(tmp_path)
    tokenizer = small.blank_words(closes=True)
    names = [f"<extra_id_{number}>" for number in range(9)]
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    config = small.t5_config(vocab_size=len(tokenizer))
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    tokenizer.save_pretrained(tmp_path / "t5")
    (tmp_path / "texts.txt").write_text("this film was great and this play was dull\n" * 40)
    (tmp_path / "gaps.jsonl").write_text('{"text": "this ____ was a ____ play"}\n')
    done = workspace.run(
        "train", "task=corpus", "task.data_dir=texts.txt", "model.path=t5", "task.max_length=40",
        "train.expected_batch_size=8", "train.steps=1", "privacy.noise_multiplier=1",
        "privacy.accountant=rdp", "eval.held_out=0.2",
        "eval.limit=2", "hydra.run.dir=run",
    )  # fmt: skip
    assert done.code == 0, done.err
    advised = [line[11:] for line in done.out.splitlines() if line.startswith("next: dpft ")]
    assert [line.split()[0] for line in advised] == ["eval", "generate", "report"]
    for line in advised:
        done = workspace.run(*line.replace("FILE", "gaps.jsonl").split())
        assert done.code == 0, done.err
    (row,) = map(json.loads, (tmp_path / "run/generated/1.jsonl").read_text().splitlines())
    assert row["prompt"] == "this ____ was a ____ play"
    first, second = row["fills"]
    assert first and second
    assert row["text"] == f"this {first} was a {second} play"
    assert "task=corpus" in workspace.refusal("generate", "run=run", "num=3")
