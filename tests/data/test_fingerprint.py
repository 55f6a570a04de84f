import hashlib
import hmac
from dataclasses import replace

import numpy as np
import pytest

from dpft.data.fingerprint import fingerprint
from dpft.data.token_rows import TokenRows
from dpft.data.tokenization import TokenizedExample

KEY = bytes(32)
ROWS = [
    TokenizedExample(input_ids=[1, 2, 3], labels=[-100, 2, 3]),
    TokenizedExample(input_ids=[4], labels=[4]),
]


def test_equal_records_have_equal_fingerprints_under_one_key_only():
    assert fingerprint(ROWS, None, KEY) == fingerprint(list(ROWS), None, KEY)
    assert fingerprint(ROWS, None, KEY) != fingerprint(ROWS, None, bytes([1]) * 32)


@pytest.mark.parametrize(
    ("rows", "units"),
    [
        (ROWS[:1], None),
        (ROWS[::-1], None),
        ([replace(ROWS[0], labels=[-100, -100, 3]), ROWS[1]], None),
        ([replace(ROWS[0], token_type_ids=[0, 0, 1]), ROWS[1]], None),
        ([replace(ROWS[0], input_ids=[1, 2], labels=[3, -100, 2, 3]), ROWS[1]], None),
        (ROWS, [[0, 1]]),
        (ROWS, [[0], [1]]),
    ],
)
def test_any_change_of_the_records_or_their_units_shows(rows, units):
    assert fingerprint(rows, units, KEY) != fingerprint(ROWS, None, KEY)


def number_by_number(rows, units) -> str:
    """Returns the fingerprint by its definition: of every list its length, then its numbers."""
    digest = hmac.new(KEY, digestmod=hashlib.sha256)
    columns = [
        column
        for row in rows
        for column in (row.input_ids, row.labels, row.token_type_ids or [], [row.answer or 0])
    ]
    for column in [*columns, *(units or [])]:
        digest.update(len(column).to_bytes(8, "big"))
        digest.update(np.asarray(column, dtype=np.float64).tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("units", [None, [], [[0, 2], [], [1]]])
def test_it_is_the_hash_of_every_list_with_its_length(units):
    rows = [
        *ROWS,
        TokenizedExample(input_ids=[9, 9], labels=[0.1, 0.2], answer=1),
        TokenizedExample(input_ids=[9], labels=[2], token_type_ids=[0], answer=0),
        TokenizedExample(input_ids=[3, 4], labels=[]),
    ]
    assert fingerprint(rows, units, KEY) == number_by_number(rows, units)
    assert fingerprint(TokenRows(rows), units, KEY) == number_by_number(rows, units)
