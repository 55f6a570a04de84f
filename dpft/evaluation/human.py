"""The sheet on which people rate, without knowing whose they are, the responses of several models.

Li et al. 2022 (arXiv 2110.05679, Appendix K) had responses to Persona-Chat rated from 1 to 5 given
the history of the dialog, those of several models and the reference beside each other. Here each
response is a row, the rows of an item in shuffled order; whose a row is stands in a key, a file of
its own. Nothing here reads or writes a file.

The sheet is comma-separated, UTF-8 with a byte-order mark, every cell quoted: a spreadsheet opens
it as it is. A text that a spreadsheet could take for a formula gets an apostrophe before it.
"""

import csv
import hashlib
import io
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpft.errors import InputError
from dpft.records.scores import RatedResponse, SheetKey

REFERENCE = "reference"
"""What the key calls the reference, a system among the others."""
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
    """What the responses answer."""
    responses: Mapping[str, str]
    """System to its text, the reference's under ``REFERENCE``."""


@dataclass(frozen=True, kw_only=True)
class Row:
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

    Args:
        count: Distinct inputs there are.
        items: Inputs to choose.
        seed: The same seed chooses the same inputs.

    Raises:
        InputError: There are fewer inputs.
    """
    if items > count:
        raise InputError(
            f"human_eval must be at most the number of distinct inputs of the split, got {items};"
            " lower it, or choose another split with eval.split."
        )
    return random.Random(f"inputs {seed}").sample(range(count), items)


def sheet_rows(items: Sequence[Item], *, seed: int) -> list[Row]:
    """Returns the rows of the sheet, the responses of each item shuffled.

    Args:
        items: In the order of the sheet.
        seed: The same seed shuffles alike.

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
        Row(
            item=number,
            response_id=f"{tag}-{position}",
            context=item.context,
            response=item.responses[system],
            system=system,
        )
        for position, (number, item, system) in enumerate(shuffled, start=1)
    ]


def sheet_text(rows: Sequence[Row]) -> str:
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


def sheet_key(rows: Sequence[Row], systems: Sequence[str], **about: Any) -> SheetKey:
    """Returns the content of the key file: the system of each response, and none of the texts.

    Args:
        rows: The sheet's.
        systems: In the order of reports.
        about: What else a ``SheetKey`` tells of the sheet.
    """
    responses = {row.response_id: RatedResponse(item=row.item, system=row.system) for row in rows}
    return SheetKey(**about, scale=SCALE, systems=tuple(systems), responses=responses)
