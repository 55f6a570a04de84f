"""Drafts of schemas, made from the private records for their owner to edit.

The owner must check each line before the schema becomes public.
"""

import json
import math
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import pandas as pd
import yaml

from dpft.data.raw_rows import Row
from dpft.errors import InputError
from dpft.privacy.plan import EXAMPLE
from dpft.synthesis.schema import FLAGS, MARK, Misfit, cell_text, day_of, number_of

FEW_VALUES, LETTERS_OF_A_TOKEN = 50, 3
PLAIN_NUMBER = re.compile(
    r"-?(?:0|[1-9]\d{0,14}|(?=\.\d))(?:\.\d*(?:[eE][+-]?\d+)?|[eE][+-]\d+)?", re.ASCII
)
"""Pattern of a number that float64 represents. It does not match postcodes (02116), phone numbers
(+49…), card numbers or hashes."""
HEAD = f"""\
{MARK}: it was derived from the private table, and the schema is public.
# Review each line and ask whether everybody may know it. Take values from a code book and ranges
# from common sense, not from these records. Then save the file next to the data as
# NAME.schema.yaml, without this comment: a file that begins with it is rejected.
#   type: category (values), integer and decimal (minimum, maximum, step), date (minimum, maximum),
#         boolean, text (max_tokens), id (generated, never learned), drop (skipped)
#   missing: true                        cells may be empty
# rules: [discharge >= admission]        compared if both cells have a value
# impossible: [{{city: Oslo, smoker: true}}]     combinations that never occur
# label: COLUMN                          classes for testing the synthetic table
columns:
"""


def draft_schema(rows: Iterable[Row], *, unit: str) -> str:
    """Return the text of a draft for some rows.

    Args:
        rows: The rows of the table.
        unit: The column of the privacy unit, which is not learned; or example.

    Raises:
        InputError: There are no rows, or the rows are not readable.
    """
    table = pd.DataFrame([dict(row.sound()) for row in rows], dtype=object)
    if table.empty:
        raise InputError("data must have rows to make a draft from, got none.", key="data")
    text = HEAD
    for name, cells in table.items():
        line, remark = _guess(str(name), cells.tolist())
        if name == unit:
            line, remark = {"type": "id"}, "the unit"
        flow = yaml.safe_dump(line, default_flow_style=True, sort_keys=False, width=10**9,
                              allow_unicode=True).strip()  # fmt: skip
        text += f"  # {remark}\n  {json.dumps(name, ensure_ascii=False)}: {flow}\n"
    return text


def _guess(name: str, cells: Sequence[object]) -> tuple[dict[str, Any], str]:
    """Return the declaration of a column, and the remark above it."""
    try:
        texts = [text for text in map(cell_text, cells) if text is not None and text.strip()]
    except Misfit:
        return {"type": "drop"}, "it contains lists or objects, which are not supported"
    if not texts:
        return {"type": "drop"}, "no row has a value"
    missing = {"missing": True} if len(texts) < len(cells) else {}
    distinct = sorted({text.strip() for text in texts})
    if {text.lower() for text in distinct} <= set(FLAGS) - {"0", "1"}:
        return {"type": "boolean", **missing}, "two values"
    if all(map(PLAIN_NUMBER.fullmatch, distinct)):
        line = _range_of([number_of(text) for text in distinct])
        return line | missing, "the smallest and largest number of the records"
    try:
        days = [day_of(text) for text in distinct]
        line = {"type": "date", "minimum": min(days), "maximum": max(days)}
        return line | missing, "the earliest and latest day of the records"
    except Misfit:
        pass
    names_rows = re.fullmatch(f"{EXAMPLE}|key|uuid|.*id|.*number", name.lower(), re.DOTALL)
    if names_rows and len(distinct) == len(texts) > 1:
        return {"type": "id"}, "each row has a different value"
    if len(distinct) <= min(FEW_VALUES, max(2, len(texts) // 4)):
        line = {"type": "category", "values": distinct}
        return line | missing, f"{len(distinct)} values; a rare one may identify a person"
    # Digits, punctuation and letters of other scripts take about one token each.
    others = [len(re.sub(r"[A-Za-z\s]", "", text)) for text in texts]
    tokens = (math.ceil((len(text) - count) / LETTERS_OF_A_TOKEN) + count
              for text, count in zip(texts, others, strict=True))  # fmt: skip
    line = {"type": "text", "max_tokens": max(tokens)}
    return line | missing, "max_tokens is about the length of the longest text"


def _range_of(numbers: Sequence[Decimal]) -> dict[str, Any]:
    places = min(6, max(0, *(-int(number.as_tuple().exponent) for number in numbers)))
    if places == 0:
        return {"type": "integer", "minimum": int(min(numbers)), "maximum": int(max(numbers))}
    step = Decimal(1).scaleb(-places)
    low = (min(numbers) / step).to_integral_value("ROUND_FLOOR") * step
    high = (max(numbers) / step).to_integral_value("ROUND_CEILING") * step
    ends = {"minimum": float(low), "maximum": float(high), "step": float(step)}
    return {"type": "decimal", **ends}
