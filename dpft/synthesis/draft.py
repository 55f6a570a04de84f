"""A schema that the data suggest, for their owner to go through: private until it is edited.

Every value and range in it was looked up in the records. So it is written into private/, and says
above each column what its owner has to ask: may everybody know this?
"""

import datetime
import json
import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import yaml

from dpft.data.raw_rows import Row
from dpft.errors import InputError
from dpft.privacy.plan import EXAMPLE
from dpft.synthesis.columns import Day, Flag, Misfit
from dpft.synthesis.schema import MARK
from dpft.tasks.templates import spelled

FEW_VALUES = 50
"""Different values of a column that may be a category."""
LETTERS_OF_A_TOKEN = 3
HEAD = f"""\
{MARK}: all of it was read out of the private table, and what you leave in it becomes public.
# Go through each line and ask whether everybody may know it: take values from a code book and
# ranges from common sense, not from these records. Then save it beside the data, as
# NAME.schema.yaml, without this comment: a file that begins with it is refused.
#   type: category (values), integer and decimal (minimum, maximum, step), date (minimum, maximum),
#         boolean, text (max_tokens), id (made anew, never learned), drop (left out)
#   missing: true, where a cell may be empty
# rules: [discharge >= admission]        compared where both are there
# impossible: [{{city: Oslo, smoker: true}}]     what never stands together
# label: COLUMN                          by whose classes the synthetic table is tried
"""


def draft_schema(rows: Iterable[Row], *, unit: str) -> str:
    """Returns the text of a schema for some rows.

    Args:
        rows: Of the table.
        unit: The column of the unit, which is no column to learn; or example.

    Raises:
        InputError: There are no rows, or they cannot be read.
    """
    cells: dict[str, list[object]] = {}
    count = 0
    for row in rows:
        for name, value in row.sound().items():
            cells.setdefault(name, [None] * count).append(value)
        count += 1
        for own in cells.values():
            own.extend([None] * (count - len(own)))
    if not count:
        raise InputError("data must have rows for a draft to be made of, got none.")
    lines = [HEAD, "columns:"]
    for name, found in cells.items():
        says, asks = ({"type": "id"}, "the unit") if name == unit else _guess(name, found)
        lines += [f"  # {asks}", f"  {_flow(name)}: {_flow(says)}"]
    return "\n".join(lines) + "\n"


def _guess(name: str, cells: Sequence[object]) -> tuple[dict[str, Any], str]:
    """Returns what a column seems to hold, and what its owner is to ask."""
    there = [cell for cell in cells if not _is_empty(cell)]
    missing: dict[str, Any] = {"missing": True} if len(there) < len(cells) else {}
    if not there:
        return {"type": "drop"}, "no row has a value"
    distinct = {spelled(cell) for cell in there}
    if all(isinstance(cell, str | int | float | bool) for cell in there):
        numbers = [_number(cell) for cell in there]
        if {str(each).lower() for each in distinct} <= set(Flag.WORDS) - {"0", "1"}:
            return {"type": "boolean", **missing}, "two values"
        whole = [each for each in numbers if each is not None]
        if len(whole) == len(there):
            return _numeric(whole, missing)
        if all(_is_day(cell) for cell in there):
            days = sorted(str(cell).strip()[:10] for cell in there)
            ends = {key: datetime.date.fromisoformat(day) for key, day in
                    (("minimum", days[0]), ("maximum", days[-1]))}  # fmt: skip
            return {"type": "date", **ends, **missing}, "the earliest and latest day of the records"
        if len(distinct) == len(there) and len(there) > 1 and _is_name_of_id(name):
            return {"type": "id"}, "each row has another value"
        if len(distinct) <= min(FEW_VALUES, max(2, len(there) // 4)):
            values = sorted(str(each) for each in distinct)
            says = {"type": "category", "values": values, **missing}
            return says, f"{len(values)} values; a rare one may name somebody"
        longest = max(len(str(cell)) for cell in there)
        room = math.ceil(longest / LETTERS_OF_A_TOKEN)
        return {"type": "text", "max_tokens": room, **missing}, "the longest text has about so many"
    return {"type": "drop"}, "it holds lists or objects, which no column can"


def _numeric(found: Sequence[Decimal], missing: dict[str, Any]) -> tuple[dict[str, Any], str]:
    asks = "the smallest and largest number of the records"
    places = max(0, *(-int(each.as_tuple().exponent) for each in found))
    if places == 0:
        whole = {"minimum": int(min(found)), "maximum": int(max(found))}
        return {"type": "integer", **whole, **missing}, asks
    places = min(places, 6)
    unit = Decimal(1).scaleb(-places)
    low = (min(found) / unit).to_integral_value("ROUND_FLOOR") * unit
    high = (max(found) / unit).to_integral_value("ROUND_CEILING") * unit
    ends = {"minimum": float(low), "maximum": float(high), "step": float(unit)}
    return {"type": "decimal", **ends, **missing}, asks


def _is_empty(cell: object) -> bool:
    blank = isinstance(cell, str) and not cell.strip()
    return cell is None or blank or (isinstance(cell, float) and math.isnan(cell))


def _number(cell: object) -> Decimal | None:
    if isinstance(cell, bool):
        return None
    try:
        found = Decimal(str(cell).strip())
    except ArithmeticError:
        return None
    return found if found.is_finite() else None


def _is_day(cell: object) -> bool:
    try:
        Day(name="x", minimum="0001-01-01", maximum="9999-12-31").read_present(cell)
    except Misfit:
        return False
    return True


def _is_name_of_id(name: str) -> bool:
    lower = name.lower()
    return lower in (EXAMPLE, "id", "key", "uuid") or lower.endswith(("_id", "id", "number"))


def _flow(value: Any) -> str:
    """Returns a value as one line of YAML."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**9,
                          allow_unicode=True)  # fmt: skip
    return str(text).strip()
