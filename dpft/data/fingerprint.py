"""Whether training records are those a run began with, without saying anything about them.

A plain hash in a public file would tell anyone who guesses the records that the guess is right;
this one is keyed, and key and hash stay in the run's private folder (docs/design.md, rule 9).
"""

import hashlib
import hmac
from collections.abc import Sequence

import numpy as np

from dpft.data.packed_records import TOGETHER, pieces
from dpft.data.token_rows import Block, Lists, ends_of, numbered, token_rows
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
    for block in token_rows(rows).blocks:
        digest.update(_words(_columns(block)))
    for some in pieces(units or [], TOGETHER):
        digest.update(_words([Lists.of(some, np.int64)]))
    return digest.hexdigest()


def _columns(block: Block) -> list[Lists]:
    """Returns what is known of each record: ids, labels, types and where the answer is."""
    none: list[list[int]] = [[]] * len(block)
    answers = np.zeros(len(block), np.int32) if block.answers is None else block.answers
    return [
        block.ids,
        block.all_labels(),
        Lists.of(none, np.int32) if block.types is None else block.types,
        Lists(values=answers, bounds=np.arange(len(block) + 1)),
    ]


def _words(columns: Sequence[Lists]) -> bytes:
    """Returns record by record the lists of each column, each list after its length."""
    lengths = np.stack([column.lengths for column in columns], axis=1)
    starts = ends_of(lengths.ravel() + 1)[:-1].reshape(lengths.shape)
    words = np.empty(int(lengths.sum() + lengths.size), np.uint64)
    words[starts] = lengths.astype(">u8").view(np.uint64)
    for column, start in zip(columns, starts.T, strict=True):
        places = np.repeat(start + 1, column.lengths) + numbered(column.bounds)
        # exact: token ids are far below 2**53
        words[places] = column.values.astype(np.float64).view(np.uint64)
    return words.tobytes()
