r"""What a column of a table holds, as its owner says in public: eight kinds, and one spelling each.

A column reads a cell of a file, strictly; it spells what it read as JSON, in one way only; and it
gives the pattern of all that it could spell, by which a model is held to it. So what a model writes
is read back without a choice, and is in range.

>>> age = Whole(name="age", minimum=18, maximum=99)
>>> age.read("42"), age.spell(42), age.pattern
(42, '42', '(?:1[8-9]|[2-9][0-9])')
>>> age.longest, Flag(name="smoker", missing=True).options
('18', (True, False, None))

A model's grammar knows characters, not numbers: that an age is between 18 and 99 has to be said as
``1[8-9]|[2-9][0-9]``. Every number has one spelling: no leading zeros, no plus, no minus before
zero; a decimal has all its places; a day is YYYY-MM-DD.

>>> decimals(18, 105, places=0)
'(?:1[8-9]|[2-9][0-9]|10[0-5])'
>>> decimals(-5, 25, places=1)
'(?:-0\\.[1-5]|[0-1]\\.[0-9]|2\\.[0-5])'
"""

import calendar
import datetime
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar

from dpft.errors import InputError
from dpft.tasks.base import is_unicode
from dpft.tasks.templates import spelled

Digits = tuple[tuple[int, int], ...]
"""For each place of a number the least and the largest digit that may stand there."""


def decimals(least: int, most: int, *, places: int) -> str:
    """Returns a pattern of the decimals between two ends, of so many places after the point.

    Args:
        least: The smallest, in units of the last place: -5 is -0.5 of one place.
        most: The largest; at least as large.
        places: Digits after the point; 0: whole numbers, and no point.
    """
    if least > most:
        raise ValueError(f"least must be at most {most}, got {least}.")
    parts = []
    if least < 0:
        parts += [f"-{each}" for each in _numbers(max(1, -most), -least, places)]
    if most >= 0:
        parts += _numbers(max(0, least), most, places)
    return _either(parts)


def days(first: datetime.date, last: datetime.date) -> str:
    """Returns a pattern of the days between two, both included, as YYYY-MM-DD."""
    if first > last:
        raise ValueError(f"first must be at most {last}, got {first}.")
    of_years = (
        (f"{year:04d}", _of_year(year, first, last)) for year in range(first.year, last.year + 1)
    )
    named: dict[str, list[str]] = {}
    for year, days_of_year in of_years:
        named.setdefault(days_of_year, []).append(year)
    return _either([f"{_either(years)}-{pattern}" for pattern, years in named.items()])


def _of_year(year: int, first: datetime.date, last: datetime.date) -> str:
    """Returns a pattern of the days of a year that are between two days, as MM-DD."""
    named: dict[str, list[str]] = {}
    for month in range(1, 13):
        length = calendar.monthrange(year, month)[1]
        least = first.day if (year, month) == (first.year, first.month) else 1
        most = last.day if (year, month) == (last.year, last.month) else length
        if (first.year, first.month) <= (year, month) <= (last.year, last.month):
            pattern = _either([_spelled(each) for each in _between(least, most, 2)])
            named.setdefault(pattern, []).append(f"{month:02d}")
    return _either([f"{_either(months)}-{pattern}" for pattern, months in named.items()])


def _numbers(least: int, most: int, places: int) -> list[str]:
    """Returns patterns of the numbers between two that are not negative."""
    found = []
    for width in range(places + 1, max(places + 1, len(str(most))) + 1):
        low = 0 if width == places + 1 else 10 ** (width - 1)
        for digits in _between(max(least, low), min(most, 10**width - 1), width):
            text = _spelled(digits[: width - places])
            found.append(text + (r"\." + _spelled(digits[width - places :]) if places else ""))
    return found


def _between(least: int, most: int, width: int) -> Iterator[Digits]:
    """Yields the numbers between two, as places of digits that vary by themselves.

    Args:
        least: The smallest.
        most: The largest; nothing is yielded where it is below ``least``.
        width: Digits of each number, leading zeros among them.
    """
    if least > most:
        return
    if width == 0:
        yield ()
        return
    unit = 10 ** (width - 1)
    first, last = least // unit, most // unit
    if first == last:
        for rest in _between(least % unit, most % unit, width - 1):
            yield ((first, first), *rest)
        return
    if least % unit:
        for rest in _between(least % unit, unit - 1, width - 1):
            yield ((first, first), *rest)
        first += 1
    ends_whole = most % unit == unit - 1
    if first <= (last if ends_whole else last - 1):
        yield ((first, last if ends_whole else last - 1), *(((0, 9),) * (width - 1)))
    if not ends_whole:
        for rest in _between(0, most % unit, width - 1):
            yield ((last, last), *rest)


def _spelled(digits: Sequence[tuple[int, int]]) -> str:
    return "".join(str(low) if low == high else f"[{low}-{high}]" for low, high in digits)


def _either(parts: Sequence[str]) -> str:
    distinct = [part for part, _ in groupby(parts)]
    return distinct[0] if len(distinct) == 1 else f"(?:{'|'.join(distinct)})"


Value = str | int | float | bool | Decimal | datetime.date | None
"""What a cell holds once it was read; None where it is missing."""
NULL = "null"
STRING = r'"(?:[^"\\\x00-\x1f]|\\["\\nrtbf]|\\u00[01][0-9a-f])*"'
"""A text as ``json.dumps`` spells it where all of Unicode may stand for itself."""
MOST_DIGITS = 18
"""Of a number: its steps are counted in whole numbers, which are exact."""
MOST_VALUES = 10_000
"""Values of a category: each is a branch of the grammar."""


class Misfit(ValueError):
    """A cell that its column cannot hold; the message does not quote it."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column; by itself it is of no kind."""

    name: str
    missing: bool = False
    """Whether a cell may be empty."""

    kind: ClassVar[str]
    is_learned: ClassVar[bool] = True
    """Whether the model learns it and writes it."""
    is_categorical: ClassVar[bool] = False
    """Whether a histogram can be made of it."""

    def read(self, cell: object) -> Value:
        """Returns what a cell of a file holds.

        Raises:
            Misfit: Nothing that the column can hold.
        """
        if self.is_empty(cell):
            if not self.missing:
                raise Misfit("is missing, which the schema does not allow (missing: true)")
            return None
        return self.read_present(cell)

    def is_empty(self, cell: object) -> bool:
        """Returns whether a cell holds nothing."""
        if isinstance(cell, float):
            return math.isnan(cell)
        return cell is None or (isinstance(cell, str) and not cell.strip())

    def read_present(self, cell: object) -> Value:
        """Returns what a cell holds that is not empty; see ``read``."""
        raise NotImplementedError

    def spell(self, value: Value) -> str:
        """Returns what was read as JSON."""
        return NULL if value is None else self.spell_present(value)

    def spell_present(self, value: Any) -> str:
        """Returns what was read, and is not missing, as JSON."""
        raise NotImplementedError

    def parse(self, found: object) -> Value:
        """Returns the value whose JSON was decoded to ``found``.

        Raises:
            Misfit: It is no value of the column.
        """
        return self.read(found)

    @property
    def pattern(self) -> str:
        """A regular expression of every JSON that the column spells; of a missing one, ``null``."""
        own = self.pattern_present
        return f"(?:{own}|{NULL})" if self.missing else own

    @property
    def pattern_present(self) -> str:
        """The same of what is not missing."""
        raise NotImplementedError

    @property
    def options(self) -> tuple[Value, ...]:
        """All values, of a categorical column; None among them where a cell may be empty."""
        raise NotImplementedError

    @property
    def longest(self) -> str:
        """The longest JSON that the column spells, but for texts."""
        raise NotImplementedError

    def cell(self, value: Value) -> str | int | float | bool | None:
        """Returns a value as it is written into a file."""
        return value if not isinstance(value, Decimal | datetime.date) else str(value)


def _refuse(name: str, sentence: str) -> None:
    raise InputError(f"the schema's column {name} {sentence}")


@dataclass(frozen=True, kw_only=True)
class Category(Column):
    """One of a public list of values."""

    values: tuple[str | int | float | bool, ...] = ()

    kind: ClassVar[str] = "category"
    is_categorical: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.values:
            _refuse(self.name, "needs values, the public list of them: values: [a, b].")
        if len(self.values) > MOST_VALUES:
            _refuse(
                self.name,
                f"may list at most {MOST_VALUES} values, got {len(self.values)}; make it a text,"
                " or join rare values into one.",
            )
        for value in self.values:
            if isinstance(value, bool):
                word = "yes, on and true" if value else "no, off and false"
                _refuse(
                    self.name,
                    f"lists {value}, as YAML reads {word}; quote the word, or make it a boolean.",
                )
            name = spelled(value)
            if not name or name != str(name).strip() or not is_unicode(name):
                _refuse(self.name, f"lists {value!r}, which is no value; quote a text.")
            if isinstance(value, str) and value != value.strip():
                _refuse(self.name, f"lists {value!r}, with a blank at an end; drop the blank.")
        if len(self._named) < len(self.values):
            _refuse(self.name, "lists two values that are written alike; drop one.")

    @cached_property
    def _named(self) -> dict[str, str | int | float | bool]:
        return {str(spelled(value)): value for value in self.values}

    def read_present(self, cell: object) -> Value:
        """See ``Column.read_present``; whether a 3 is a number or a text makes no difference."""
        found = spelled(cell)
        if found not in self._named:
            raise Misfit(f"must be one of the {len(self.values)} values that the schema lists")
        return self._named[found]

    def spell_present(self, value: Any) -> str:
        """See ``Column.spell_present``."""
        return json.dumps(str(spelled(value)), ensure_ascii=False)

    @property
    def pattern_present(self) -> str:
        """See ``Column.pattern_present``."""
        return f"(?:{'|'.join(literal(self.spell_present(value)) for value in self.values)})"

    @property
    def options(self) -> tuple[Value, ...]:
        """See ``Column.options``."""
        return (*self.values, None) if self.missing else self.values

    @property
    def longest(self) -> str:
        """See ``Column.longest``."""
        return max(map(self.spell, self.options), key=len)


@dataclass(frozen=True, kw_only=True)
class Flag(Column):
    """True or false."""

    kind: ClassVar[str] = "boolean"
    is_categorical: ClassVar[bool] = True
    WORDS: ClassVar[Mapping[str, bool]] = {
        **dict.fromkeys(("true", "yes", "1", "t", "y"), True),
        **dict.fromkeys(("false", "no", "0", "f", "n"), False),
    }
    pattern_present = "(?:true|false)"
    longest = "false"

    def read_present(self, cell: object) -> Value:
        """See ``Column.read_present``."""
        found = self.WORDS.get(str(spelled(cell)).lower())
        if found is None:
            raise Misfit("must be true or false (or yes and no, or 1 and 0)")
        return found

    def spell_present(self, value: Any) -> str:
        """See ``Column.spell_present``."""
        return "true" if value else "false"

    @property
    def options(self) -> tuple[Value, ...]:
        """See ``Column.options``."""
        return (True, False, None) if self.missing else (True, False)


@dataclass(frozen=True, kw_only=True)
class Ranged(Column):
    """A column of values between two public ends."""

    minimum: Any = None
    """The smallest value; it is read as a cell is."""
    maximum: Any = None
    """The largest value."""

    PUBLIC: ClassVar[tuple[str, ...]] = ("minimum", "maximum")
    """The keys that are values themselves, which a schema must say."""
    EXPECTED: ClassVar[str]
    """What each of them must be, in words."""

    def __post_init__(self) -> None:
        for key in self.PUBLIC:
            given = getattr(self, key)
            if given is None:
                _refuse(self.name, f"needs a {key}: a range is public, and none is guessed.")
            try:
                object.__setattr__(self, key, self.value_of(given))
            except Misfit:
                _refuse(self.name, f"must have {self.EXPECTED.format(key)}, got {given!r}.")
        if self.minimum > self.maximum:
            _refuse(self.name, f"must have a minimum of at most its maximum, got {self.minimum}.")

    def value_of(self, cell: object) -> Any:
        """Returns what a cell holds, which may be out of the range.

        Raises:
            Misfit: Nothing of the column's kind.
        """
        raise NotImplementedError

    def read_present(self, cell: object) -> Value:
        """See ``Column.read_present``."""
        found: Any = self.value_of(cell)
        if not self.minimum <= found <= self.maximum:
            raise Misfit(f"must be from {self.minimum} to {self.maximum}")
        return self.nearest(found)

    def nearest(self, value: Value) -> Value:
        """Returns the value of the column that is nearest to one in the range."""
        return value


@dataclass(frozen=True, kw_only=True)
class Number(Ranged):
    """What whole numbers and decimals share: a range, and a step from its lower end."""

    step: Any = 1
    """What two neighboring values are apart."""

    PUBLIC: ClassVar[tuple[str, ...]] = ("minimum", "maximum", "step")
    EXPECTED: ClassVar[str] = "a number as its {}"

    def __post_init__(self) -> None:
        super().__post_init__()
        size = max(abs(self.minimum), abs(self.maximum), self.step)
        if size.adjusted() + 1 + self.places > MOST_DIGITS:
            _refuse(
                self.name,
                f"may have numbers of at most {MOST_DIGITS} digits, those after the point counted;"
                " narrow its range, or widen its step.",
            )
        if not self.step > 0:
            _refuse(self.name, f"must have a step above 0, got {self.step}.")
        if self.offset(self.maximum) % self.step:
            _refuse(
                self.name,
                f"must reach its maximum, {self.maximum}, from its minimum, {self.minimum}, in"
                f" steps of {self.step}; change one.",
            )

    @property
    def places(self) -> int:
        """Digits after the point, of every value."""
        exponents = (each.normalize().as_tuple().exponent for each in (self.minimum, self.step))
        return max(0, *(-exponent for exponent in exponents if isinstance(exponent, int)))

    def offset(self, value: Any) -> Decimal:
        """Returns how far a value is from the smallest."""
        apart: Decimal = value - self.minimum
        return apart

    def value_of(self, cell: object) -> Decimal:
        """See ``Ranged.value_of``."""
        return number_of(cell)

    def read_present(self, cell: object) -> Value:
        """See ``Column.read_present``."""
        if isinstance(cell, str) and re.match(r"\s*[+-]?0\d", cell):
            raise Misfit(
                "has a leading zero, which a number would lose (make the column a category or a"
                " text)"
            )
        return super().read_present(cell)

    def nearest(self, value: Any) -> Value:
        """See ``Ranged.nearest``: a step."""
        steps = (self.offset(value) / self.step).quantize(Decimal(1), ROUND_HALF_EVEN)
        found: Decimal = self.minimum + steps * self.step
        return found.quantize(Decimal(1).scaleb(-self.places))

    def spell_present(self, value: Any) -> str:
        """See ``Column.spell_present``."""
        return f"{value:.{self.places}f}"

    @property
    def pattern_present(self) -> str:
        """See ``Column.pattern_present``: of steps such as 0.25 also what is between them.

        ``read`` rounds that to a step.
        """
        scale = Decimal(10) ** self.places
        least, most = int(self.minimum * scale), int(self.maximum * scale)
        return decimals(least, most, places=self.places)

    @property
    def longest(self) -> str:
        """See ``Column.longest``."""
        return max(map(self.spell_present, (self.minimum, self.maximum)), key=len)


def number_of(cell: object) -> Decimal:
    """Returns the number in a cell.

    Raises:
        Misfit: It holds none.
    """
    try:
        found = Decimal(str(cell).strip())
    except InvalidOperation:
        found = Decimal("NaN")
    is_text_or_number = isinstance(cell, str | int | float | Decimal) and not isinstance(cell, bool)
    # Decimal reads 1_0 as 10
    if not is_text_or_number or not found.is_finite() or "_" in str(cell):
        raise Misfit("must be a number")
    return found


_PLAIN_NUMBER = re.compile(
    r"-?(?:0|[1-9]\d{0,14}|(?=\.\d))(?:\.\d*(?:[eE][+-]?\d+)?|[eE][+-]\d+)?", re.ASCII
)
"""At most 15 digits before the point: float64 holds these exactly. An exponent has a sign or
follows a point, as programs write it; 1e5 is rather the beginning of a hash."""


def is_identifier(cell: object) -> bool:
    """Return whether a cell that ``number_of`` reads is rather a postcode, a phone number or an id.

    Such a cell would lose a leading zero, a plus sign or its last digits if it became a number.

    >>> [is_identifier(cell) for cell in ("02116", "+49301234", "1e5", 4111111111111111)]
    [True, True, True, True]
    >>> [is_identifier(cell) for cell in ("0", "-0.50", "1e-05", "2.5E6", 82)]
    [False, False, False, False, False]
    """
    return not _PLAIN_NUMBER.fullmatch(str(cell).strip())


@dataclass(frozen=True, kw_only=True)
class Whole(Number):
    """A whole number."""

    kind: ClassVar[str] = "integer"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.places:
            _refuse(self.name, "must have a whole minimum and step; make it a decimal.")

    def nearest(self, value: Any) -> Value:
        """See ``Ranged.nearest``."""
        if value % 1:
            raise Misfit("must be a whole number")
        found: Any = super().nearest(value)
        return int(found)


@dataclass(frozen=True, kw_only=True)
class Fraction(Number):
    """A decimal: as many places as its step has."""

    kind: ClassVar[str] = "decimal"
    step: Any = "0.01"


@dataclass(frozen=True, kw_only=True)
class Day(Ranged):
    """A day, YYYY-MM-DD."""

    kind: ClassVar[str] = "date"
    step: ClassVar[Decimal] = Decimal(1)
    """In days."""
    EXPECTED: ClassVar[str] = "a day as its {}, YYYY-MM-DD"

    def offset(self, value: Any) -> Decimal:
        """Returns how many days a value is after the earliest."""
        return Decimal((value - self.minimum).days)

    def value_of(self, cell: object) -> datetime.date:
        """See ``Ranged.value_of``."""
        return day_of(cell)

    def spell_present(self, value: Any) -> str:
        """See ``Column.spell_present``."""
        return f'"{value}"'

    @property
    def pattern_present(self) -> str:
        """See ``Column.pattern_present``."""
        return f'"{days(self.minimum, self.maximum)}"'

    @property
    def longest(self) -> str:
        """See ``Column.longest``."""
        return f'"{self.maximum}"'


def day_of(cell: object) -> datetime.date:
    """Returns the day in a cell.

    Raises:
        Misfit: It holds none.
    """
    if isinstance(cell, datetime.datetime):
        return cell.date()
    if isinstance(cell, datetime.date):
        return cell
    text = cell.strip() if isinstance(cell, str) else ""
    if not re.fullmatch(r"\d{4}-\d\d-\d\d(?:[T ]00:00(?::00(?:\.0+)?)?)?", text, re.ASCII):
        raise Misfit("must be a day, YYYY-MM-DD")
    try:
        return datetime.date.fromisoformat(text[:10])
    except ValueError:
        raise Misfit("must be a day of the calendar, YYYY-MM-DD") from None


@dataclass(frozen=True, kw_only=True)
class Text(Column):
    """Any text of at most so many tokens; a longer one loses its end."""

    max_tokens: int | None = None

    kind: ClassVar[str] = "text"
    pattern_present = STRING
    longest = '""'

    def __post_init__(self) -> None:
        if type(self.max_tokens) is not int or self.max_tokens < 1:
            _refuse(
                self.name, f"needs max_tokens, a number of at least 1, got {self.max_tokens!r}."
            )

    @property
    def room(self) -> int:
        """Most tokens of it."""
        assert self.max_tokens is not None
        return self.max_tokens

    def is_empty(self, cell: object) -> bool:
        """See ``Column.is_empty``: an empty text is one, where no cell may be missing."""
        if isinstance(cell, str):
            return self.missing and not cell
        return super().is_empty(cell)

    def read_present(self, cell: object) -> Value:
        """See ``Column.read_present``."""
        if isinstance(cell, bool) or not isinstance(cell, str | int | float):
            raise Misfit("must be a text")
        text = cell if isinstance(cell, str) else json.dumps(cell)
        if not is_unicode(text):
            raise Misfit("must be valid Unicode")
        return text

    def spell_present(self, value: Any) -> str:
        """See ``Column.spell_present``."""
        return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, kw_only=True)
class Identity(Column):
    """Names a row, or somebody: never learned; made anew, 1, 2, 3 and so on."""

    kind: ClassVar[str] = "id"
    is_learned: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class Dropped(Column):
    """Left out: neither learned nor written."""

    kind: ClassVar[str] = "drop"
    is_learned: ClassVar[bool] = False


KINDS: dict[str, type[Column]] = {
    kind.kind: kind for kind in (Category, Whole, Fraction, Day, Flag, Text, Identity, Dropped)
}
"""The word after ``type:`` to what it stands for."""


def column_of(name: str, says: Mapping[str, Any]) -> Column:
    """Returns the column that a line of a schema describes.

    Raises:
        InputError: It is of no kind, or has a key that its kind lacks, or a value of no sense.
    """
    given = dict(says)
    kind = KINDS.get(str(given.pop("type", None)))
    if kind is None:
        _refuse(name, f"needs a type, one of {', '.join(KINDS)}, got {says.get('type')!r}.")
    assert kind is not None
    known = [field.name for field in fields(kind) if field.name != "name"]
    known = known if kind.is_learned else []
    for key in given:
        if key not in known:
            taken = ", ".join(known) or "no other key"
            _refuse(name, f"has {key!r}, but type: {kind.kind} takes {taken}; drop it.")
    if not isinstance(given.get("missing", False), bool):
        _refuse(name, f"must have true or false as missing, got {given['missing']!r}.")
    if "values" in given:
        values = given["values"]
        if not isinstance(values, list) or any(isinstance(v, list | dict) for v in values):
            _refuse(name, f"must have a list as its values, got {values!r}.")
        given["values"] = tuple(values)
    make: Callable[..., Column] = kind
    return make(name=name, **given)


def literal(text: str) -> str:
    """Returns the pattern of one text, in the syntax that Python and Rust share."""
    return re.sub(r"([\\.+*?()|\[\]{}^$/&~#-])", r"\\\1", text)
