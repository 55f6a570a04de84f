from dpft.records.heads import HandedCounts, HandedFile
from dpft.records.promises import PrivateRun
from dpft.reports.run.provenance import with_witness, witness_rows
from tests.reports.run.plain import privacy_of
from tests.reports.run.test_privacy_record import record as private

NAME = "0" * 32


def privacy(lines: int, *warnings: str) -> PrivateRun:
    ledger = {"lines": lines, "head": "ab" * 32}
    return privacy_of({**private(), "warnings": list(warnings), "ledger": ledger})


def record(lines: int = 21, **count: int) -> PrivateRun:
    counts = HandedCounts(**{"heads": 2, "lines": 21} | count)
    handed = HandedFile(run=NAME, witnesses={"file heads": counts})
    return with_witness(privacy(lines, "first"), handed)


def test_a_witness_of_the_whole_ledger_is_named_and_warns_of_nothing() -> None:
    found = record()
    assert found.witness and found.witness.run == NAME and found.warnings == ("first",)
    ((name, words),) = witness_rows(found)
    assert name == "witness of the ledger"
    assert words.startswith("file heads: 2 heads, the last after line 21 of 21, 0 not taken;")
    assert NAME in words


def test_a_witness_that_lacks_the_end_or_missed_a_head_is_warned_of() -> None:
    behind, failed = record(lines=25).warnings, record(failed=1).warnings
    assert "file heads, has a head of 21 of the ledger's 25 lines; lodge" in behind[1]
    assert "21 of the ledger's 21 lines and 1 head was not taken; lodge" in failed[1]


def test_a_run_without_a_witness_says_nothing_of_one() -> None:
    assert with_witness(privacy(3), None) == privacy(3)
    assert witness_rows(privacy(3)) == []
