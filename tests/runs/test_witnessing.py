"""Who takes a run's heads is the command line's word alone, and they fit what was taken before."""

import json
from pathlib import Path

import pytest

from dpft.config.keys import refuse_witness_of_file
from dpft.config.schema import TrainCommand
from dpft.errors import InputError, StateError
from dpft.privacy.ledger import read_ledger
from dpft.privacy.replay_log import read_run_ledger
from dpft.privacy.witness import (
    Handover,
    Witness,
    WitnessFile,
    check_going_on,
    make_witness,
    read_handed,
)
from dpft.runs.run import witness_of
from tests.config.test_conf import loaded
from tests.runs.run_folders import make_run


def run_id_of(folder: Path) -> str | None:
    return read_ledger(folder / "ledger.jsonl").run_id


def hand_over_all(witness: Witness, folder: Path) -> None:
    """Hands over the head of a run's closing line."""
    ledger, run_id = read_run_ledger(folder), run_id_of(folder)
    assert ledger is not None and run_id is not None
    Handover(witness, folder, run_id=run_id).hand_over(ledger.lines, ledger.head)


def command(*given: str) -> TrainCommand:
    config = loaded("train", ["task=e2e", "privacy.noise_multiplier=1", *given])
    assert isinstance(config, TrainCommand)
    return config


def test_trust_rule_11_a_witness_that_a_file_names_is_refused() -> None:
    with pytest.raises(InputError, match="privacy.witness must be given on the command line"):
        refuse_witness_of_file({"witness": ["touch", "executed"]}, given=False)
    refuse_witness_of_file({"witness": ["touch", "executed"]}, given=True)
    for privacy in ({"witness": None}, {"name": "none"}):
        refuse_witness_of_file(privacy, given=False)


def test_the_witness_of_a_command_is_checked_before_it_is_returned(tmp_path: Path) -> None:
    given = f"privacy.witness={tmp_path / 'heads'}"
    witness = witness_of(command(given), tmp_path / "run")
    assert isinstance(witness, WitnessFile) and witness.path == tmp_path / "heads"
    with pytest.raises(InputError, match="in the run's own folder"):
        witness_of(command(given), tmp_path)
    assert witness_of(command(), tmp_path) is None
    plain = loaded("train", ["task=e2e", "privacy=none"])
    assert isinstance(plain, TrainCommand) and witness_of(plain, tmp_path) is None


def test_a_run_that_its_witness_saw_further_does_not_go_on(tmp_path: Path) -> None:
    folder, witness = make_run(tmp_path / "run"), make_witness(str(tmp_path / "heads"))
    hand_over_all(witness, folder)
    whole = read_run_ledger(folder)
    assert whole is not None
    check_going_on(whole, folder, witness)
    (folder / "privacy.json").unlink()
    ledger = folder / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:4]))
    cut = read_run_ledger(folder)
    assert cut is not None
    with pytest.raises(StateError, match="after line 7, as .* has it, got 4 lines"):
        check_going_on(cut, folder, witness)


def test_the_head_of_the_closing_line_is_handed_over(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    witness = make_witness(str(tmp_path / "heads"))
    hand_over_all(witness, folder)
    (entry,) = map(json.loads, (tmp_path / "heads").read_text().splitlines())
    record, handed = read_ledger(folder / "ledger.jsonl"), read_handed(folder)
    assert handed is not None
    assert entry == {"run": record.run_id, "lines": 7, "head": record.head}
    assert handed.run == record.run_id
