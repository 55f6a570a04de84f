from dataclasses import replace

import pytest

from dpft.data.fingerprint import fingerprint
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
