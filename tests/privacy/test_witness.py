"""Heads handed to somebody else, who keeps what the ledger's owner could rewrite."""

import json
import sys
import time
from pathlib import Path

import pytest

from dpft.errors import InputError, StateError
from dpft.privacy.ledger import Ledger, LedgerRecord, read_ledger
from dpft.privacy.plan import write_plan
from dpft.privacy.witness import (
    Handover,
    WitnessFile,
    WitnessProgram,
    check_going_on,
    check_witnessed,
    make_witness,
    read_handed,
)
from dpft.records.ledger import HandedCounts, HandedFile
from tests.privacy.test_ledger import MECHANISM, WRITTEN
from tests.privacy.test_plan import plan

RUN_ID = "a" * 32
KEEP = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a ledger of three steps, the heads of the last two in ``tmp_path/heads``."""
    folder = tmp_path / "run"
    folder.mkdir()
    handover = Handover(WitnessFile(tmp_path / "heads"), folder, run_id=RUN_ID)
    with Ledger(folder / "ledger.jsonl", run_id=RUN_ID, plan=WRITTEN) as ledger:
        for step in (1, 2, 3):
            ledger.append(step, MECHANISM)
            if step > 1:
                handover.hand_over(ledger.lines, ledger.head)
    return folder


def handed_by(folder: Path) -> HandedFile:
    handed = read_handed(folder)
    assert handed is not None
    return handed


def ledger_of(folder: Path, lines: int | None = None) -> LedgerRecord:
    path = folder / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))
    return read_ledger(path)


def test_a_file_has_a_line_a_head_under_the_runs_name_and_no_time(
    run: Path, tmp_path: Path
) -> None:
    record, handed = ledger_of(run), read_handed(run)
    entries = [json.loads(line) for line in (tmp_path / "heads").read_text().splitlines()]
    assert handed is not None
    assert handed.run == record.run_id == RUN_ID
    assert entries == [{"run": RUN_ID, "lines": n, "head": record.heads[n]} for n in (3, 4)]
    assert handed.witnesses == {"file heads": HandedCounts(heads=2, failed=0, lines=4)}


def test_a_run_counts_its_own_heads_and_not_those_of_a_planted_file(run: Path) -> None:
    """A folder may be received; the name of a run that begins in it is drawn all the same."""
    heads = WitnessFile(run.parent / "heads")
    Handover(heads, run, run_id=RUN_ID)
    assert handed_by(run).witnesses["file heads"].heads == 2
    Handover(heads, run, run_id="b" * 32)
    handed = handed_by(run)
    assert (handed.run, handed.witnesses["file heads"].heads) == ("b" * 32, 0)


def test_a_witness_finds_its_heads_by_the_ledger_alone(run: Path, tmp_path: Path) -> None:
    (run / "witness.json").unlink()
    assert check_witnessed(ledger_of(run), run, tmp_path / "heads") == 4
    with pytest.raises(StateError, match="after line 4, .* got 3 lines"):
        check_going_on(ledger_of(run, 3), run, WitnessFile(tmp_path / "heads"))
    with pytest.raises(StateError, match="after line 3, .* got 0 lines"):
        check_going_on(ledger_of(run, 0), run, WitnessFile(tmp_path / "heads"), RUN_ID)


def test_a_program_reads_the_line_and_no_shell_sees_its_arguments(tmp_path: Path) -> None:
    target = tmp_path / "$(touch shell); heads"
    witness = make_witness((sys.executable, "-c", KEEP, str(target)))
    witness.check(tmp_path / "run")
    (tmp_path / "run").mkdir()
    Handover(witness, tmp_path / "run", run_id=RUN_ID).hand_over(3, "f" * 64)
    entry = json.loads(target.read_text())
    assert (entry["lines"], entry["head"]) == (3, "f" * 64)
    assert sorted(path.name for path in tmp_path.iterdir()) == [target.name, "run"]
    assert witness.name == f"program {Path(sys.executable).name}"


FAILING = {
    "ends with 1": ("import sys; sys.exit(1)", "CalledProcessError"),
    "hangs": ("import time; time.sleep(60)", "TimeoutExpired"),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_witness_that_fails_costs_a_warning_that_tells_no_argument(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    code, name = FAILING[case]
    began = time.monotonic()
    witness = WitnessProgram((sys.executable, "-c", code, "a-token"), seconds=0.5)
    handover = Handover(witness, tmp_path, run_id=RUN_ID)
    handover.hand_over(10, "f" * 64)
    assert time.monotonic() - began < 20
    assert f"did not take the ledger's head ({name}); the run goes on" in caplog.text
    assert "a-token" not in caplog.text + (tmp_path / "witness.json").read_text()
    (count,) = handed_by(tmp_path).witnesses.values()
    assert count == HandedCounts(heads=0, failed=1, lines=0)


def test_a_file_that_is_gone_costs_a_warning_and_later_heads_are_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    share = tmp_path / "share"
    handover = Handover(WitnessFile(share / "heads"), tmp_path, run_id=RUN_ID)
    handover.hand_over(10, "a" * 64)
    assert "FileNotFoundError" in caplog.text
    share.mkdir()
    handover.hand_over(20, "b" * 64)
    counts = handed_by(tmp_path).witnesses
    assert counts == {"file heads": HandedCounts(heads=1, failed=1, lines=20)}


def test_a_line_that_broke_off_does_not_spoil_the_next(run: Path, tmp_path: Path) -> None:
    with (tmp_path / "heads").open("a") as file:
        file.write('{"head": "f')
    handover = Handover(WitnessFile(tmp_path / "heads"), run, run_id=RUN_ID)
    handover.hand_over(4, ledger_of(run).head)
    assert (tmp_path / "heads").read_text().count("\n") == 4
    assert check_witnessed(ledger_of(run), run, tmp_path / "heads") == 4


def test_what_cannot_be_a_witness_is_refused_before_a_step(tmp_path: Path) -> None:
    for path in (tmp_path / "run/heads", tmp_path / "run"):
        with pytest.raises(InputError, match="in the run's own folder"):
            WitnessFile(path).check(tmp_path / "run")
    for path in (tmp_path, tmp_path / "nowhere/heads"):
        with pytest.raises(InputError, match="must be a file that can be written"):
            WitnessFile(path).check(tmp_path / "run")
    with pytest.raises(InputError, match="a program that can be run, got 'no-such-program'"):
        WitnessProgram(("no-such-program",)).check(tmp_path / "run")
    WitnessFile(tmp_path / "heads").check(tmp_path / "run")


def test_a_ledger_that_lacks_a_line_of_which_the_witness_has_the_head_is_refused(
    run: Path, tmp_path: Path
) -> None:
    heads = tmp_path / "heads"
    assert check_witnessed(ledger_of(run), run, heads) == 4
    check_going_on(ledger_of(run), run, WitnessFile(heads))
    short = ledger_of(run, 2)
    for check in (
        lambda: check_witnessed(short, run, heads),
        lambda: check_going_on(short, run, WitnessFile(heads)),
    ):
        with pytest.raises(StateError, match="after line 3, .* got 2 lines; it was cut"):
            check()


def test_a_ledger_written_anew_is_refused(run: Path, tmp_path: Path) -> None:
    (run / "ledger.jsonl").unlink()
    other = plan(noise_multiplier=9.0, sample_rate=0.1)
    with Ledger(run / "ledger.jsonl", run_id=RUN_ID, plan=write_plan(other)) as ledger:
        for step in (1, 2, 3):
            ledger.append(step, other.entry_at(0))
    with pytest.raises(StateError, match="after line 3, "):
        check_witnessed(ledger_of(run), run, tmp_path / "heads")


def test_heads_of_other_runs_in_the_file_prove_nothing(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with Ledger(other / "ledger.jsonl", plan=WRITTEN) as ledger:
        ledger.append(1, MECHANISM)
    with pytest.raises(InputError, match="which has none; give the file"):
        check_witnessed(ledger_of(other), other, tmp_path / "heads")
    with pytest.raises(InputError, match="a file that can be read"):
        check_witnessed(ledger_of(run), run, tmp_path / "nowhere")


@pytest.mark.parametrize(
    "change",
    [{"run": 1}, {"run": "<b>"}, {"witnesses": []}, {"witnesses": {"file a": {"heads": "2"}}}],
)
def test_a_damaged_count_is_refused(run: Path, change: dict) -> None:
    path = run / "witness.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(StateError, match="witness.json is damaged"):
        read_handed(run)
