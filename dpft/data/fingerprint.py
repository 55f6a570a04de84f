"""Whether training records are those a run began with, without saying anything about them.

A plain hash in a public file would tell anyone who guesses the records that the guess is right;
this one is keyed, and key and hash stay in the run's private folder (docs/design.md, rule 9).
"""

import hashlib
import hmac
from collections.abc import Sequence

import numpy as np

from dpft.data.tokenization import TokenizedExample


def fingerprint(
    rows: Sequence[TokenizedExample], units: Sequence[Sequence[int]] | None, key: bytes
) -> str:
    """Returns a keyed hash of the records in their order, and of whose they are.

    Args:
        rows: The records in tokens.
        units: Positions in ``rows`` of each unit's records; None: each is a unit of its own.
        key: Secret.
    """
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for row in rows:
        for column in (row.input_ids, row.labels, row.token_type_ids or [], [row.answer or 0]):
            _add(digest, column)
    for unit in units or []:
        _add(digest, unit)
    return digest.hexdigest()


def _add(digest: "hmac.HMAC", numbers: Sequence[float]) -> None:
    values = np.asarray(numbers, dtype=np.float64)  # exact: token ids are far below 2**53
    digest.update(len(values).to_bytes(8, "big") + values.tobytes())
