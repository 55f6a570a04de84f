from dpft.records.heads import HandedCounts, HandedFile
from dpft.reports.run.provenance import with_witness, witness_rows

NAME = "0" * 32


def record(lines: int = 21, **count: int) -> dict:
    counts = HandedCounts(**{"heads": 2, "lines": 21} | count)
    handed = HandedFile(run=NAME, witnesses={"file heads": counts})
    privacy = {"warnings": ["first"], "ledger": {"lines": lines}}
    return with_witness(privacy, handed, lines)


def test_a_witness_of_the_whole_ledger_is_named_and_warns_of_nothing() -> None:
    found = record()
    assert found["witness"]["run"] == NAME and found["warnings"] == ["first"]
    ((name, words),) = witness_rows(found)
    assert name == "witness of the ledger"
    assert words.startswith("file heads: 2 heads, the last after line 21 of 21, 0 not taken;")
    assert NAME in words


def test_a_witness_that_lacks_the_end_or_missed_a_head_is_warned_of() -> None:
    behind, failed = record(lines=25)["warnings"], record(failed=1)["warnings"]
    assert "file heads, has a head of 21 of the ledger's 25 lines; lodge" in behind[1]
    assert "21 of the ledger's 21 lines and 1 head was not taken; lodge" in failed[1]


def test_a_run_without_a_witness_says_nothing_of_one() -> None:
    privacy = {"warnings": [], "ledger": {"lines": 3}}
    assert with_witness(privacy, None, 3) == privacy
    assert witness_rows(privacy) == []
