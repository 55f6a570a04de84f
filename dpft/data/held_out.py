"""Which records of a training file are held out to be scored, under a secret key.

A shuffle with a known seed would say which records were trained on; a keyed hash says it to none
who lacks the key. Each unit falls on a side on its own, so one record more or less moves no other
(row numbers shift, but sides are independent and of one distribution either way), and epsilon
holds as for all the records.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable

from dpft.tasks.image_records import LabeledImage
from dpft.tasks.records import Example, Record

KEY_BYTES = 32
_BITS = 64


def new_key() -> bytes:
    """Returns a secret key from the operating system's entropy."""
    return secrets.token_bytes(KEY_BYTES)


def split_held_out(
    units: Iterable[str], fraction: float, key: bytes
) -> tuple[list[int], list[int]]:
    """Returns the positions of the units to train on, and of those held out, each ascending.

    Args:
        units: The privacy unit of each record; equal ones fall on one side.
        fraction: Probability of a unit to be held out, above 0 and below 1.
        key: Secret; the same key gives the same sides.
    """
    threshold = int(fraction * 2**_BITS)
    kept: list[int] = []
    held: list[int] = []
    for index, unit in enumerate(units):
        (held if _number(unit, key) < threshold else kept).append(index)
    return kept, held


def fingerprint(records: Iterable[Record], units: Iterable[str], key: bytes) -> str:
    """Returns a keyed hash of the records in their order, which says nothing without the key.

    Args:
        records: What a task made of rows.
        units: As in ``split_held_out``, one for each.
        key: Secret: a plain hash would tell who guesses the records whether they are these.
    """
    digest = hmac.new(key, b"records\n", "sha256")
    for record, unit in zip(records, units, strict=True):
        digest.update(json.dumps([unit, *_content(record)]).encode() + b"\n")
    return digest.hexdigest()


def _content(record: Record) -> tuple[object, ...]:
    if isinstance(record, Example):
        return record.prompt, record.target
    if isinstance(record, LabeledImage):
        image = record.image
        content = hashlib.sha256(image.content).hexdigest()
        return image.file, image.offset, *image.shape, content, *record.answer
    return *record.texts, record.label


def _number(unit: str, key: bytes) -> int:
    """Returns the first bits of HMAC-SHA256 (RFC 2104) of the unit."""
    digest = hmac.digest(key, unit.encode("utf-8"), "sha256")
    return int.from_bytes(digest[: _BITS // 8], "big")
