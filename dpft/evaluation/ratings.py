"""Ratings by people: sheets that hide whose each response is, their keys, filled sheets, means.

Li et al. 2022 (arXiv 2110.05679, Table 3 and Appendix K) had responses to Persona-Chat rated from 1
to 5 given the history of the dialog, those of several models and the reference beside each other.
Here each response is a row, the rows of an item in shuffled order; whose a row is stands in a key,
a file of its own.

The sheet is comma-separated, UTF-8 with a byte-order mark, every cell quoted: a spreadsheet opens
it as it is. A text that a spreadsheet could take for a formula gets an apostrophe before it. Filled
sheets are read strictly, and joined with the key.

Their asymptotic 95 % interval of a system's mean is Student's here, which at few ratings is wider
as it must be: mean ± t(0.975, n - 1) · s / √n over the n ratings. Like theirs it counts each rating
as independent. Several ratings of one response, or by one person, are not quite; the interval is
then too narrow. The mean over items, each item's own mean counted once, stands beside it.
"""

import csv
import hashlib
import io
import json
import random
import re
import statistics
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.errors import InputError
from dpft.records.form import parse
from dpft.records.scores import PRIVATE_SPLIT, RatedResponse, RatedSystem, RatingsReport, SheetKey

REFERENCE = "reference"
"""The reference's name in the key, a system among the others."""
SCALE = (1, 5)
"""Lowest and highest rating, whole numbers."""
COLUMNS = ("item", "response_id", "context", "response", "rating", "rater")
"""The raters fill the last two; the last only where several rate on one sheet."""
_BYTE_ORDER_MARK = "\ufeff"
# OWASP's list (CSV injection), after anything that does not print; the apostrophe itself, so that
# one that was added can be told from one that was there.
_FORMULA = re.compile(r"[\s\x00-\x1f\ufeff\u200b]*[=+\-@\uff1d\uff0b\uff0d\uff20']")


@dataclass(frozen=True, kw_only=True)
class Item:
    """An input and what each system answered."""

    context: str
    """The text that the responses answer."""
    responses: Mapping[str, str]
    """System to its text, the reference's under ``REFERENCE``."""


@dataclass(frozen=True, kw_only=True)
class SheetRow:
    """A response on the sheet, and whose it is, which only the key tells."""

    item: int
    """Number of the item, from 1."""
    response_id: str
    """Unique on the sheet; an id of one sheet is none of another's."""
    context: str
    response: str
    system: str


def choose_inputs(count: int, items: int, *, seed: int) -> list[int]:
    """Returns the positions of the inputs to rate, in the order of the sheet.

    Raises:
        InputError: There are fewer inputs.
    """
    if items > count:
        raise InputError(
            f"human_eval must be at most the number of distinct inputs of the split, got {items};"
            " lower it, or choose another split with eval.split."
        )
    return random.Random(f"inputs {seed}").sample(range(count), items)


def sheet_rows(items: Sequence[Item], *, seed: int) -> list[SheetRow]:
    """Returns the rows of the sheet, the responses of each item shuffled.

    Guarantees:
        The order in which an item's mapping names the systems does not matter.
    """
    generator = random.Random(f"order {seed}")
    shuffled = [
        (number, item, system)
        for number, item in enumerate(items, start=1)
        for system in generator.sample(sorted(item.responses), len(item.responses))
    ]
    texts = [(item.context, item.responses[system]) for _, item, system in shuffled]
    # A letter first: a spreadsheet would take 12-1 for a date and 1e5 for a number.
    tag = f"r{hashlib.sha256(repr(texts).encode()).hexdigest()[:6]}"
    return [
        SheetRow(
            item=number,
            response_id=f"{tag}-{position}",
            context=item.context,
            response=item.responses[system],
            system=system,
        )
        for position, (number, item, system) in enumerate(shuffled, start=1)
    ]


def sheet_text(rows: Sequence[SheetRow]) -> str:
    """Returns the sheet as the text of a CSV file, ratings and raters empty."""
    file = io.StringIO()
    writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for row in rows:
        texts = (formula_safe(row.context), formula_safe(row.response))
        writer.writerow((row.item, row.response_id, *texts, "", ""))
    return _BYTE_ORDER_MARK + file.getvalue()


def formula_safe(text: str) -> str:
    """Returns the text as a cell that no spreadsheet computes, an apostrophe before it if need be.

    >>> formula_safe("=1+1"), formula_safe("1 = 1")
    ("'=1+1", '1 = 1')
    """
    return f"'{text}" if _FORMULA.match(text) else text


def sheet_key(rows: Sequence[SheetRow], systems: Sequence[str], **about: Any) -> SheetKey:
    """Returns the content of the key file: the system of each response, and none of the texts."""
    responses = {row.response_id: RatedResponse(item=row.item, system=row.system) for row in rows}
    return SheetKey(**about, scale=SCALE, systems=tuple(systems), responses=responses)


_NEEDED = ("item", "response_id", "rating")
_DELIMITERS = (",", ";", "\t")
"""Spreadsheets save with the separator of their locale."""
_LARGEST_CELL = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Key(SheetKey):
    """The key of a sheet: where its inputs are from, and which system wrote each response."""

    path: Path


@dataclass(frozen=True, kw_only=True)
class Rating:
    """One person's rating of one response."""

    rater: str
    item: int
    system: str
    value: int


@dataclass(frozen=True, kw_only=True)
class Ratings:
    """Ratings read from filled sheets."""

    given: tuple[Rating, ...]
    """All ratings of all sheets, at least one."""
    not_rated: int
    """Rows without a rating."""


@dataclass(frozen=True, kw_only=True)
class _Row:
    place: str
    """File and line."""
    item: str
    response_id: str
    rating: str
    rater: str


def read_key(path: Path) -> Key:
    """Returns the key that ``dpft eval human_eval=N`` wrote beside the sheet.

    Raises:
        InputError: It is missing, or no such key.
    """
    try:
        sheet = parse(json.loads(path.read_bytes()), SheetKey)
        return Key(path=path, **vars(sheet))
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise InputError(
            f"key must name the sheet's key file, got {path}: {reason}; it was written beside the"
            " sheet, give it with key=FILE."
        ) from None
    except (ValueError, RecursionError):
        raise InputError(
            f"{path}: key must be the JSON file that was written beside the sheet, got another."
        ) from None


def read_ratings(paths: Sequence[Path], key: Key) -> Ratings:
    """Returns the ratings on the filled sheets, which together hold every row of the key.

    A rater is whom the column ``rater`` names; where it is empty, the file stands for one.

    Raises:
        InputError: A file is no such sheet, a row is changed or missing or is rated twice by one
            person, or a rating is not on the scale. The message gives file and line.
    """
    given: list[Rating] = []
    seen: dict[tuple[str, str], str] = {}
    not_rated = 0
    for path in paths:
        for row in _rows(path):
            entry = _entry(row, key)
            rater = row.rater or str(path)
            first = seen.setdefault((row.response_id, rater), row.place)
            if first != row.place:
                raise InputError(
                    f"{row.place}: a response must stand once for each rater, got it a second time"
                    f" (first in {first}); name each rater in the column rater."
                )
            if row.rating:
                value = _value(row)
                given.append(Rating(rater=rater, item=entry.item, system=entry.system, value=value))
            else:
                not_rated += 1
    found = {response for response, _ in seen}
    missing = [name for name in key.responses if name not in found]
    if missing:
        raise InputError(
            f"{_names(paths)}: the sheets must hold all {len(key.responses)} rows of {key.path},"
            f" got {len(found)}; response_id {missing[0]} is missing. A response that nobody rated"
            " keeps its row, with an empty rating."
        )
    if not given:
        raise InputError(
            f"{_names(paths)}: the column rating must hold at least one rating from {SCALE[0]} to"
            f" {SCALE[1]}, got none."
        )
    return Ratings(given=tuple(given), not_rated=not_rated)


def _entry(row: _Row, key: Key) -> RatedResponse:
    entry = key.responses.get(row.response_id)
    if entry is None:
        raise InputError(
            f"{row.place}: response_id must be one of the {len(key.responses)} of {key.path}, got"
            " another; restore it from the sheet as it was written, or give its key with key=FILE."
        )
    if row.item != str(entry.item):
        raise InputError(
            f"{row.place}: item must be {entry.item} for this response_id, got another; restore it"
            " from the sheet as it was written."
        )
    return entry


def _value(row: _Row) -> int:
    """Returns a rating; a spreadsheet may have made 4.0 of a 4."""
    lowest, highest = SCALE
    expected = f"rating must be a whole number from {lowest} to {highest}, or empty"
    try:
        value = float(row.rating)
    except ValueError:
        raise InputError(f"{row.place}: {expected}, got what is no number.") from None
    if not value.is_integer() or not lowest <= value <= highest:
        raise InputError(f"{row.place}: {expected}, got {value:g}.")
    return int(value)


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))


def _rows(path: Path) -> Iterator[_Row]:
    """Yields the rows of a file that are not blank, each with the line it begins in."""
    lines = _lines(path)
    first, header = next(lines, (1, []))
    names = [name.strip().lower() for name in header]
    missing = [name for name in _NEEDED if names.count(name) != 1]
    if missing:
        raise InputError(
            f"{path}:{first}: a rating sheet must have the columns {', '.join(_NEEDED)}, each once,"
            f" got {missing[0]} {names.count(missing[0])} times."
        )
    for line, cells in lines:
        if len(cells) != len(names):
            raise InputError(
                f"{path}:{line}: a row must have {len(names)} cells, as the header,"
                f" got {len(cells)}."
            )
        row = dict(zip(names, (cell.strip() for cell in cells), strict=True))
        yield _Row(
            place=f"{path}:{line}",
            item=row["item"],
            response_id=row["response_id"],
            rating=row["rating"],
            rater=row.get("rater", ""),
        )


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the cells of each row that is not blank, after the line it begins in."""
    text = _text(path)
    header = text.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=header.count)
    limit = csv.field_size_limit(_LARGEST_CELL)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    begin = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield begin, cells
            begin = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}:{begin}: a rating sheet must be CSV, got {error}.") from None
    finally:
        csv.field_size_limit(limit)


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise InputError(f"ratings must name a filled sheet, got {path}: {reason}.") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}:{line}: a rating sheet must be UTF-8; save it as CSV UTF-8."
        ) from None
    if not text.strip():
        raise InputError(f"{path}: a rating sheet must have a header and rows, got an empty file.")
    return text


LEVEL = 0.95
INDEPENDENT = (
    "95 % interval: Student's t over the ratings, each counted as independent of the others."
    " Several ratings of one response, or by one person, are not quite: it is then too narrow."
)


def rating_record(system: str, ratings: Sequence[tuple[int, int]]) -> RatedSystem:
    """Returns what the ratings say of a system; mean and interval are None where too few say it."""
    values = [value for _, value in ratings]
    items: dict[int, list[int]] = {}
    for item, value in ratings:
        items.setdefault(item, []).append(value)
    means = [statistics.fmean(each) for each in items.values()]
    return RatedSystem(
        system=system,
        ratings=len(values),
        items=len(items),
        mean=statistics.fmean(values) if values else None,
        interval=mean_interval(values),
        mean_over_items=statistics.fmean(means) if means else None,
    )


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Returns the ends of Student's 95 % interval of the mean; None for fewer than two values."""
    from scipy import stats

    if len(values) < 2:
        return None
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1))
    half = quantile * deviation / len(values) ** 0.5
    return mean - half, mean + half


def ratings_table(report: RatingsReport) -> str:
    """Returns the means as lines of text."""
    systems = report.systems
    width = max(len("system"), *(len(each.system) for each in systems))
    lines = [
        f"{report.task}, split {report.split}: {_counted(report.ratings, 'rating')} by"
        f" {_counted(report.raters, 'rater')}, {_counted(report.not_rated, 'row')} not rated",
        f"{'system':<{width}}  ratings  items   mean  95 % interval   mean over items",
        *(_line(system, width) for system in systems),
    ]
    if any(system.ratings == 1 for system in systems):
        lines.append("One rating has no interval.")
    lines += textwrap.wrap(INDEPENDENT, 88)
    return "\n".join(lines if report.split_is_public else [*lines, PRIVATE_SPLIT])


def _line(rated: RatedSystem, width: int) -> str:
    interval = rated.interval
    ends = "none" if interval is None else f"({interval[0]:.2f}, {interval[1]:.2f})"
    return (
        f"{rated.system:<{width}}  {rated.ratings:>7}  {rated.items:>5}"
        f"  {_mean(rated.mean):>5}  {ends:<14}  {_mean(rated.mean_over_items):>15}"
    )


def _mean(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
