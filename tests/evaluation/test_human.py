import csv
import io
from collections import Counter
from dataclasses import asdict

import pytest

from dpft.errors import InputError
from dpft.evaluation.human import (
    COLUMNS,
    REFERENCE,
    Item,
    choose_inputs,
    formula_safe,
    sheet_key,
    sheet_rows,
    sheet_text,
)
from dpft.generation.decoding import DecodeConfig
from dpft.records.scores import SheetDecoding

SYSTEMS = ("outputs/a", "outputs/b", "outputs/c", REFERENCE)
TRICKY = [
    'He said "no, thanks";\nthen\r\nleft',
    '=HYPERLINK("http://x","y")',
    "+1",
    "-1 is less",
    "@SUM(A1)",
    " \t=1",
    "\x00=1",
    "'tis so",
    "''",
    "a = b",
    "",
    "日本\u2028語 😀",
    "＝1",  # noqa: RUF001
]
NEEDS_APOSTROPHE = [1, 2, 3, 4, 5, 6, 7, 8, 12]


def items(systems: tuple[str, ...] = SYSTEMS, count: int = 12) -> list[Item]:
    return [
        Item(
            context=f"context {number}",
            responses={system: f"{system} to {number}" for system in systems},
        )
        for number in range(count)
    ]


def parsed(text: str) -> list[dict[str, str]]:
    assert text.startswith("\ufeff")
    return list(csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True))


def test_a_row_for_each_response_with_room_for_a_rating() -> None:
    rows = parsed(sheet_text(sheet_rows(items(), seed=0)))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == 12 * 4
    assert {(row["rating"], row["rater"]) for row in rows} == {("", "")}
    assert [row["item"] for row in rows[::4]] == [str(number) for number in range(1, 13)]
    assert {row["response"] for row in rows[:4]} == set(items()[0].responses.values())


def test_the_order_of_the_runs_leaves_no_trace_on_the_sheet() -> None:
    assert sheet_rows(items(), seed=0) == sheet_rows(items(SYSTEMS[::-1]), seed=0)


def test_every_system_stands_in_every_place_and_no_item_tells_the_next_ones_order() -> None:
    rows = sheet_rows(items(count=400), seed=0)
    for place in range(4):
        counts = Counter(row.system for row in rows[place::4])
        # 100 expected of 400; six standard deviations of a binomial are 52
        assert all(abs(counts[system] - 100) < 52 for system in SYSTEMS)
    orders = {tuple(row.system for row in rows[4 * n : 4 * n + 4]) for n in range(400)}
    assert len(orders) == 24


ABOUT = {
    "task": "chat",
    "split": "test",
    "split_is_public": False,
    "seed": 0,
    "decode": SheetDecoding(**asdict(DecodeConfig())),
}
"""What a key tells beside the responses."""


def test_only_the_key_tells_whose_a_response_is() -> None:
    silent = [Item(context="c", responses={system: "same" for system in SYSTEMS}) for _ in range(3)]
    rows = sheet_rows(silent, seed=0)
    text = sheet_text(rows)
    assert not any(system in text for system in SYSTEMS)
    key = sheet_key(rows, SYSTEMS, **ABOUT)
    assert "same" not in repr(key)
    assert (key.systems, key.scale, key.task) == (SYSTEMS, (1, 5), "chat")
    for row in parsed(text):
        entry = key.responses[row["response_id"]]
        assert str(entry.item) == row["item"]
    assert Counter(entry.system for entry in key.responses.values()) == dict.fromkeys(SYSTEMS, 3)


def test_the_ids_of_another_sheet_are_others_and_no_spreadsheet_takes_them_for_numbers() -> None:
    ids = {row.response_id for row in sheet_rows(items(), seed=0)}
    assert len(ids) == 48
    assert ids.isdisjoint(row.response_id for row in sheet_rows(items(), seed=1))
    assert ids.isdisjoint(row.response_id for row in sheet_rows(items(count=13), seed=0))
    assert all(name.startswith("r") and "-" in name for name in ids)


def test_inputs_are_distinct_follow_the_seed_and_are_not_the_first_ones() -> None:
    chosen = choose_inputs(100, 20, seed=0)
    assert chosen == choose_inputs(100, 20, seed=0) != choose_inputs(100, 20, seed=1)
    assert len(set(chosen)) == 20 and max(chosen) >= 20
    assert sorted(choose_inputs(5, 5, seed=3)) == [0, 1, 2, 3, 4]
    with pytest.raises(
        InputError, match=r"at most the number of distinct inputs of the split, got 6"
    ):
        choose_inputs(5, 6, seed=0)


def test_tricky_texts_come_back_as_they_were() -> None:
    tricky = [Item(context=text, responses={REFERENCE: text}) for text in TRICKY]
    for row, text in zip(parsed(sheet_text(sheet_rows(tricky, seed=0))), TRICKY, strict=True):
        assert row["context"].removeprefix("'") == row["response"].removeprefix("'") == text


def test_no_cell_opens_like_a_formula() -> None:
    """The first characters are those OWASP names under CSV injection."""
    cells = [formula_safe(text) for text in TRICKY]
    marked = [n for n, (cell, text) in enumerate(zip(cells, TRICKY, strict=True)) if cell != text]
    assert marked == NEEDS_APOSTROPHE
    assert not any(cell.strip().startswith(tuple("=+-@＝")) for cell in cells)  # noqa: RUF001
