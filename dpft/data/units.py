"""Whose record is whose: the records that training keeps of each privacy unit.

With ``privacy.unit=customer_id`` the promise is to a customer, not to a record, so a customer's
records are drawn together and clipped as one. Their number is bounded in advance; which of them are
kept is decided by a hash under a secret key, which a unit's other records and other units' records
have no part in.
"""

import hashlib
import hmac
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def group_by_unit(values: Sequence[str]) -> list[list[int]]:
    """Returns the positions of each unit's records, units in the order in which each first occurs.

    >>> group_by_unit(["ann", "bob", "ann"])
    [[0, 2], [1]]

    Args:
        values: The unit of each record.
    """
    positions: dict[str, list[int]] = {}
    for position, value in enumerate(values):
        positions.setdefault(value, []).append(position)
    return list(positions.values())


def bounded_units(
    values: Sequence[str],
    *,
    usable: Sequence[bool] | NDArray[np.bool_],
    records_per_unit: int,
    key: bytes,
) -> list[list[int]]:
    """Returns the positions of the records that training keeps of each unit, maybe none.

    Of a unit with more usable records than ``records_per_unit``, those of the smallest keyed
    hashes of the unit and the record's number within it are kept.

    Args:
        values: The unit of each record.
        usable: Whether a record can be trained on, in the same order; the others are left out.
        records_per_unit: Most records of a unit.
        key: Secret; 32 bytes.

    Guarantees:
        What is kept of a unit is a function of that unit's own records and the key.
    """
    kept = []
    for positions in group_by_unit(values):
        numbered = [(number, at) for number, at in enumerate(positions) if usable[at]]
        numbered.sort(key=lambda one: _hash(key, values[one[1]], one[0]))
        kept.append(sorted(at for _, at in numbered[:records_per_unit]))
    return kept


def units_of_chunks(counts: NDArray[np.int64], usable: NDArray[np.bool_]) -> list[list[int]]:
    """Returns the positions of each record's chunks that can be trained on, maybe none.

    >>> units_of_chunks(np.array([2, 1, 2]), np.array([True, True, False, True, True]))
    [[0, 1], [], [3, 4]]

    Args:
        counts: How many chunks each record has, in the order of the records.
        usable: Whether a chunk can be trained on.
    """
    bounds = np.concatenate(([0], np.cumsum(counts)))
    return [
        [at for at in range(first, last) if usable[at]]
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ]


def _hash(key: bytes, unit: str, number: int) -> bytes:
    # The number has a fixed length, so that no two pairs are written alike.
    message = number.to_bytes(8, "big") + unit.encode()
    return hmac.new(key, message, hashlib.sha256).digest()
