from pathlib import Path

import pytest

from dpft.errors import InputError
from dpft.evaluation.human import REFERENCE, Item, sheet_key, sheet_rows, sheet_text
from dpft.evaluation.ratings import Key, read_key, read_ratings
from dpft.records.form import write_record
from tests.evaluation.test_human import ABOUT

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
