import csv
import io
import math
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from dpft.errors import InputError
from dpft.evaluation.ratings import (
    COLUMNS,
    REFERENCE,
    Item,
    Key,
    choose_inputs,
    formula_safe,
    mean_interval,
    rating_record,
    ratings_table,
    read_key,
    read_ratings,
    sheet_key,
    sheet_rows,
    sheet_text,
)
from dpft.generation.decoding import DecodeConfig
from dpft.records.form import write_record
from dpft.records.scores import RatingsReport, SheetDecoding

ABOUT = {
    "task": "chat",
    "split": "test",
    "split_is_public": False,
    "seed": 0,
    "decode": SheetDecoding(**asdict(DecodeConfig())),
}
SYSTEMS = ("a", "b", REFERENCE)
SECRET = "Qzxsecret"
ROWS = sheet_rows(
    [
        Item(context=f'{SECRET}\n"{n}"', responses={name: f"={SECRET} {name}" for name in SYSTEMS})
        for n in range(2)
    ],
    seed=0,
)
IDS = [row.response_id for row in ROWS]
HEADER = "item,response_id,context,response,rating,rater\n"


@pytest.fixture
def key(tmp_path: Path) -> Key:
    path = tmp_path / "key.json"
    write_record(path, sheet_key(ROWS, SYSTEMS, **ABOUT))
    return read_key(path)


def sheet(path: Path, ratings: list[str], rater: str = "") -> Path:
    """A sheet as the raters' spreadsheet saves it: only quoted where need be."""
    lines = [
        f"{row.item},{row.response_id},c,r,{rating},{rater}\n"
        for row, rating in zip(ROWS, ratings, strict=True)
    ]
    path.write_text(HEADER + "".join(lines))
    return path


def written_and_filled(path: Path, delimiter: str = ",") -> Path:
    text = sheet_text(ROWS)
    for number, name in enumerate(IDS):
        place = text.index('"",""', text.index(f'"{name}"'))
        text = text[:place] + f'"{number % 5 + 1}",""' + text[place + len('"",""') :]
    path.write_bytes(text.replace('","', f'"{delimiter}"').encode())
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_filled_sheet_is_joined_with_its_key(tmp_path: Path, key: Key, delimiter: str) -> None:
    ratings = read_ratings([written_and_filled(tmp_path / "s.csv", delimiter)], key)
    found = [(rating.item, rating.system, rating.value) for rating in ratings.given]
    assert found == [(row.item, row.system, n % 5 + 1) for n, row in enumerate(ROWS)]
    assert ratings.not_rated == 0


def test_rows_without_a_rating_are_counted(tmp_path: Path, key: Key) -> None:
    ratings = read_ratings([sheet(tmp_path / "s.csv", ["4", "", "5.0", "", " 1 ", ""])], key)
    assert [rating.value for rating in ratings.given] == [4, 5, 1]
    assert ratings.not_rated == 3


def test_several_raters_have_files_of_their_own_or_names(tmp_path: Path, key: Key) -> None:
    one, two = sheet(tmp_path / "1.csv", ["1"] * 6), sheet(tmp_path / "2.csv", ["5"] * 6)
    assert len({rating.rater for rating in read_ratings([one, two], key).given}) == 2
    named = sheet(tmp_path / "n.csv", ["1"] * 6, "Ann")
    more = sheet(tmp_path / "m.csv", ["2"] * 6, "Bo").read_text().removeprefix(HEADER)
    named.write_text(named.read_text() + more)
    ratings = read_ratings([named], key)
    assert {rating.rater for rating in ratings.given} == {"Ann", "Bo"}
    assert len(ratings.given) == 12


def test_parts_of_a_sheet_and_blank_rows_are_read(tmp_path: Path, key: Key) -> None:
    whole = sheet(tmp_path / "w.csv", ["3"] * 6).read_text().splitlines(keepends=True)
    one, two = tmp_path / "1.csv", tmp_path / "2.csv"
    one.write_text("".join(whole[:3]) + "\n,,,,,\n")
    two.write_text(HEADER + "".join(whole[3:]))
    assert len(read_ratings([one, two], key).given) == 6


def replaced(old: str, new: str) -> object:
    return lambda text: text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("change", "line", "parts"),
    [
        (replaced(",3,", ",6,"), 2, ["rating", "from 1 to 5", "got 6."]),
        (replaced(",3,", ",0,"), 2, ["got 0."]),
        (replaced(",3,", ",2.5,"), 2, ["whole number", "got 2.5."]),
        (replaced(",3,", f",{SECRET},"), 2, ["rating", "got what is no number"]),
        (replaced(",3,", ",nan,"), 2, ["got nan"]),
        (replaced(",3,", ",1e400,"), 2, ["got inf"]),
        (replaced(IDS[1], "r1-1"), 3, ["response_id", "one of the 6", "key=FILE"]),
        (replaced(f"2,{IDS[4]}", f"1,{IDS[4]}"), 6, ["item must be 2"]),
        (replaced(f"1,{IDS[1]}", f"1,{IDS[0]}"), 3, ["once for each rater", "s.csv:2)"]),
        (replaced("c,r", "c"), 2, ["6 cells", "got 5"]),
        (replaced("c,r", f'"{SECRET}"x,r'), 2, ["must be CSV"]),
        (replaced("response_id", "id"), 1, ["columns item, response_id, rating", "0 times"]),
        (replaced("rater", "rating"), 1, ["rating 2 times"]),
    ],
)
def test_a_changed_row_is_refused_by_file_and_line(
    tmp_path: Path, key: Key, change, line: int, parts: list[str]
) -> None:
    path = sheet(tmp_path / "s.csv", ["3"] * 6)
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError) as error:
        read_ratings([path], key)
    message = str(error.value)
    assert message.startswith(f"{path}:{line}: "), message
    assert [part for part in parts if part not in message] == [], message
    assert SECRET not in message


def test_the_line_is_that_in_which_a_row_with_line_breaks_begins(tmp_path: Path, key: Key) -> None:
    path = written_and_filled(tmp_path / "s.csv")
    path.write_text(path.read_text().replace(IDS[2], "gone"))
    with pytest.raises(InputError, match=r"s\.csv:6: response_id"):  # header, then two lines each
        read_ratings([path], key)


def test_a_missing_row_is_named(tmp_path: Path, key: Key) -> None:
    path = sheet(tmp_path / "s.csv", ["3"] * 6)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(InputError, match=rf"s\.csv: .* all 6 rows .* got 5; .*{IDS[5]} is missing"):
        read_ratings([path], key)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "empty file"),
        (b"\xef\xbb\xbf \n", "empty file"),
        (HEADER.encode(), "all 6 rows"),
        (HEADER.encode() + b"1,\xff,c,r,3,\n", "s.csv:2: a rating sheet must be UTF-8"),
    ],
)
def test_an_empty_or_undecodable_sheet_is_refused(
    tmp_path: Path, key: Key, content: bytes, part: str
) -> None:
    path = tmp_path / "s.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read_ratings([path], key)
    assert part in str(error.value)


def test_a_sheet_that_nobody_filled_is_refused(tmp_path: Path, key: Key) -> None:
    with pytest.raises(InputError, match="at least one rating from 1 to 5, got none"):
        read_ratings([sheet(tmp_path / "s.csv", [""] * 6)], key)


def test_what_is_no_file_or_no_key_is_refused(tmp_path: Path, key: Key) -> None:
    with pytest.raises(InputError, match=r"ratings must name .*none\.csv: no such file"):
        read_ratings([tmp_path / "none.csv"], key)
    with pytest.raises(InputError, match=r"key must name .* no such file .* key=FILE"):
        read_key(tmp_path / "none.json")
    for content in ("{", "[]", "{}", '{"task": 1, "responses": []}'):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(InputError, match=r"bad\.json: key must be the JSON file"):
            read_key(tmp_path / "bad.json")


WRITERS = ("outputs/a", "outputs/b", "outputs/c", REFERENCE)
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


def items(systems: tuple[str, ...] = WRITERS, count: int = 12) -> list[Item]:
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
    assert sheet_rows(items(), seed=0) == sheet_rows(items(WRITERS[::-1]), seed=0)


def test_every_system_stands_in_every_place_and_no_item_tells_the_next_ones_order() -> None:
    rows = sheet_rows(items(count=400), seed=0)
    for place in range(4):
        counts = Counter(row.system for row in rows[place::4])
        # 100 expected of 400; six standard deviations of a binomial are 52
        assert all(abs(counts[system] - 100) < 52 for system in WRITERS)
    orders = {tuple(row.system for row in rows[4 * n : 4 * n + 4]) for n in range(400)}
    assert len(orders) == 24


"""What a key tells beside the responses."""


def test_only_the_key_tells_whose_a_response_is() -> None:
    silent = [Item(context="c", responses={system: "same" for system in WRITERS}) for _ in range(3)]
    rows = sheet_rows(silent, seed=0)
    text = sheet_text(rows)
    assert not any(system in text for system in WRITERS)
    key = sheet_key(rows, WRITERS, **ABOUT)
    assert "same" not in repr(key)
    assert (key.systems, key.scale, key.task) == (WRITERS, (1, 5), "chat")
    for row in parsed(text):
        entry = key.responses[row["response_id"]]
        assert str(entry.item) == row["item"]
    assert Counter(entry.system for entry in key.responses.values()) == dict.fromkeys(WRITERS, 3)


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


def test_the_interval_of_two_and_three_ratings_is_students_closed_form() -> None:
    """For one and two degrees of freedom Student's quantile function has a closed form.

    t(p, 1) = tan(π(p - 1/2)), as Cauchy's, and t(p, 2) = (2p - 1) / √(2p(1 - p)): Shaw 2006,
    Sampling Student's T distribution, Journal of Computational Finance 9/4.
    """
    p = 0.975
    # 2 and 5: mean 3.5, s = 3/√2, s/√2 = 1.5; 2, 3 and 4: mean 3, s = 1
    for values, mean, error, quantile in [
        ([2, 5], 3.5, 1.5, math.tan(math.pi * (p - 0.5))),
        ([2, 3, 4], 3.0, 1 / math.sqrt(3), (2 * p - 1) / math.sqrt(2 * p * (1 - p))),
    ]:
        expected = (mean - quantile * error, mean + quantile * error)
        assert mean_interval(values) == pytest.approx(expected, rel=1e-9)


def test_the_interval_of_five_ratings_has_the_tabled_quantile() -> None:
    """t(0.975, 4) = 2.776: NIST/SEMATECH e-Handbook of Statistical Methods, section 1.3.6.7.2."""
    half = 2.776 * math.sqrt(2.5 / 5)  # the variance of 1, 2, 3, 4, 5 is 2.5
    assert mean_interval([1, 2, 3, 4, 5]) == pytest.approx((3 - half, 3 + half), abs=5e-4)


def test_one_rating_has_a_mean_and_no_interval() -> None:
    record = rating_record("a", [(1, 4)])
    assert (record.mean, record.interval, record.mean_over_items) == (4.0, None, 4.0)
    assert rating_record("a", []).mean is None


def test_the_mean_over_items_counts_each_item_once() -> None:
    record = rating_record("a", [(1, 5), (1, 5), (1, 5), (2, 1)])
    assert (record.ratings, record.items) == (4, 2)
    assert (record.mean, record.mean_over_items) == (4.0, 3.0)


def table(*, split_is_public: bool = True) -> str:
    systems = (
        rating_record("outputs/a", [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]),
        rating_record("reference", [(1, 5)]),
        rating_record("outputs/long/name", []),
    )
    report = RatingsReport(
        task="chat",
        split="test",
        split_is_public=split_is_public,
        ratings=6,
        raters=1,
        not_rated=9,
        interval="",
        systems=systems,
    )
    return ratings_table(report)


def test_the_table_tells_counts_means_and_intervals() -> None:
    lines = table().splitlines()
    assert lines[0] == "chat, split test: 6 ratings by 1 rater, 9 rows not rated"
    assert lines[2].split() == ["outputs/a", "5", "5", "3.00", "(1.04,", "4.96)", "3.00"]
    assert lines[3].split() == ["reference", "1", "1", "5.00", "none", "5.00"]
    assert lines[4].split() == ["outputs/long/name", "0", "0", "none", "none", "none"]
    assert lines[5] == "One rating has no interval."
    assert lines[6].startswith("95 % interval: Student's t over the ratings, each counted as indep")
    assert len(lines) == 8


def test_ratings_of_private_records_say_so() -> None:
    assert table(split_is_public=False).endswith("private held-out records, not covered by epsilon")
