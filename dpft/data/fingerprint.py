"""Whether training records are those a run began with, without saying anything about them.

A plain hash in a public file would tell anyone who guesses the records that the guess is right;
this one is keyed, and key and hash stay in the run's private folder (docs/design.md, rule 9).
"""

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpft.data.packed_records import TOGETHER, pieces
from dpft.data.token_rows import Lists, encoded_rows, words_of


def fingerprint(rows: Sequence[Any], units: Sequence[Sequence[int]] | None, key: bytes) -> str:
    """Returns a keyed hash of the records in their order, and of whose they are.

    Args:
        rows: The records, encoded.
        units: Positions in ``rows`` of each unit's records; None: each is a unit of its own.
        key: Secret.
    """
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for content in encoded_rows(rows).content():
        digest.update(content)
    for some in pieces(units or [], TOGETHER):
        digest.update(words_of([Lists.of(some, np.int64)]))
    return digest.hexdigest()
