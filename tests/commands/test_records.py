"""Runs whose unit of privacy is a customer, and records with nothing to learn."""

import json
import stat
from pathlib import Path

import pytest

from tests.stories.tiny import STEPS, TRAINING, Outcome, Workspace, make_workspace

OWNERS = [f"Qzxowner {i % 12}" for i in range(40)]
RUN = (
    *TRAINING, "task.data_dir=owned", "privacy.noise_multiplier=1", STEPS, "eval.enabled=false",
    "train.expected_batch_size=4", "train.micro_batch_size=4", "privacy.records_per_unit=2",
)  # fmt: skip
UNIT = "privacy.unit=customer"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = make_workspace(tmp_path_factory.mktemp("units"))
    rows = [json.loads(line) for line in (made.root / "data/train.jsonl").read_text().splitlines()]
    for row, owner in zip(rows, OWNERS, strict=True):
        row["customer"] = owner
    rows[5]["human_reference"] = "  "
    (made.root / "owned").mkdir()
    write(made.root / "owned" / "train.jsonl", rows)
    return made


def write(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def outcome(workspace: Workspace) -> Outcome:
    return workspace.run("train", *RUN, UNIT, "hydra.run.dir=run")


@pytest.fixture(scope="module")
def folder(workspace: Workspace, outcome: Outcome) -> Path:
    assert outcome.code == 0, outcome.err
    return workspace.root / "run"


def test_units_are_what_is_counted_and_the_report_says_so(folder: Path) -> None:
    record = json.loads((folder / "privacy.json").read_text())
    plan = record["plan"]
    assert (plan["num_examples"], plan["unit"]) == (12, "customer")
    assert record["num_examples_source"] == "counted in the data"
    assert plan["sample_rate"] == 4 / 12
    assert record["delta"] == 1 / 24
    definition = "all records with one value of customer, of which at most 2 are trained on"
    assert plan["unit_definition"] == definition
    report = (folder / "report.md").read_text()
    assert f"| privacy unit | {definition} |" in report
    assert "add or remove one customer" in report


def test_what_is_kept_and_left_out_is_counted_in_private_alone(folder: Path) -> None:
    first = json.loads((folder / "private" / "diagnostics.jsonl").read_text().splitlines()[0])
    assert first == {
        "num_records": 24,
        "num_units": 12,
        "excluded_records": 1,
        "public_num_examples": 12,
    }


def test_a_private_summary_says_what_became_of_every_record(folder: Path, outcome: Outcome) -> None:
    summary = folder / "private" / "data_summary.md"
    assert stat.S_IMODE(summary.stat().st_mode) == 0o600
    rows = [line.split(" | ") for line in summary.read_text().splitlines() if " | " in line]
    counts = {name.strip("| "): value.strip(" |") for name, value, *_ in rows}
    assert counts["read"] == "40, of 12 units"
    assert counts["held out for evaluation"] == "0"
    assert counts["skipped: empty, with nothing to learn"] == "1"
    assert counts["skipped: beyond privacy.records_per_unit=2"] == "15"
    assert counts["trained on"] == "24, of 12 units"
    said = outcome.err.replace(str(folder.parent), "")  # whose number may have a 15 in it
    assert "run/private/data_summary.md" in outcome.out and "15" not in said


def test_trust_rule_7_no_unit_is_named_in_public(folder: Path, outcome: Outcome) -> None:
    public = [path for path in folder.rglob("*") if path.is_file() and "private" not in path.parts]
    assert public
    assert not [path for path in public if b"Qzxowner" in path.read_bytes()]
    assert "Qzxowner" not in outcome.out + outcome.err


@pytest.mark.slow
def test_a_published_number_of_records_is_no_number_of_units(workspace: Workspace) -> None:
    given = ("task.source=embedded", "task.data_dir=owned", UNIT, "output=json")
    planned = workspace.run("plan", *RUN, *given)
    assert json.loads(planned.out)["plan"]["num_examples"] == 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ((UNIT, "privacy.records_per_unit=5"), ["privacy.records_per_unit", "5"]),
        (("privacy.unit=owner",), ["train.jsonl, lines 1, 2, 3", "column owner"]),
        (("privacy.unit=''",), ["privacy.unit"]),
    ],
)
def test_units_that_cannot_be_kept_apart_are_refused(
    workspace: Workspace, arguments: tuple[str, ...], parts: list[str]
) -> None:
    sentence = workspace.refusal("train", *RUN, *arguments)
    assert [part for part in parts if part not in sentence] == [], sentence


@pytest.mark.slow
def test_a_row_without_a_unit_is_refused_before_anything_is_written(workspace: Workspace) -> None:
    rows = [json.loads(line) for line in (workspace.root / "owned/train.jsonl").open()]
    rows[3]["customer"] = None
    folder = workspace.root / "nobodys"
    folder.mkdir()
    write(folder / "train.jsonl", rows)
    refusal = workspace.refusal("train", *RUN, UNIT, "task.data_dir=nobodys")
    assert "train.jsonl, line 4" in refusal


@pytest.mark.slow
def test_records_that_are_all_empty_are_refused(workspace: Workspace) -> None:
    rows = [{"meaning_representation": "name[a]", "human_reference": ""}] * 40
    (workspace.root / "empty").mkdir()
    write(workspace.root / "empty" / "train.jsonl", rows)
    outcome = workspace.run("train", *RUN, "task.data_dir=empty", "hydra.run.dir=never")
    assert outcome.code == 2
    assert "task=e2e" in outcome.err
    assert not (workspace.root / "never").exists()
