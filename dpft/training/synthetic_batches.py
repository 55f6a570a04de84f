"""Batches of synthetic records, on which a model runs before it sees real records.

Contents, labels and lengths are random but identical in every run. They depend only on public
configuration.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from dpft.data.batches import Batch, Layout, TextLayout, collated_units

CAUSAL_TEXT = TextLayout()
SHORT_LENGTH = 7
LONG_LENGTH = 64
"""Length in tokens of the longest record of a self-check, if ``max_length`` allows this length and
padding requires no more. A self-check holds the logits of 4 such records in memory."""
SHUFFLED = (2, 0, 3, 1)
"""Order of the rows, which ``Layout.synthetic`` returns from the longest to the shortest. The order
is shuffled because a model that sorts its rows by length would leave sorted rows in place."""


def synthetic_batch(
    model: nn.Module, count: int, longest: int, *, layout: Layout = CAUSAL_TEXT, ragged: bool = True
) -> Batch:
    """Return a batch of synthetic records on the model's device.

    Args:
        model: The model, which determines the vocabulary of the records.
        count: Number of records.
        longest: Length of the longest record.
        layout: Layout of the rows in a batch.
        ragged: Whether the records differ in length.
    """
    rows = layout.synthetic(model, count, longest, ragged=ragged)
    return layout.collate(rows).to(next(model.parameters()).device)


@dataclass(frozen=True, kw_only=True)
class SelfCheckBatches:
    """The arguments of a clipper's self-check."""

    batches: Sequence[Batch]
    """Batches of 4 rows."""
    alone: Sequence[Sequence[Batch]]
    """The privacy units of each batch in ``batches``. Each unit is collated separately and padded
    only to its longest row."""
    rows_per_unit: int
    """Number of rows of each privacy unit in ``batches``."""


def self_check_batches(
    model: nn.Module, *, max_length: int, layout: Layout = CAUSAL_TEXT, has_units: bool = False
) -> SelfCheckBatches:
    """Return ragged batches of two padded lengths, on the model's device.

    There is only one batch if the layout cannot pad to a second length, for example for images.

    Args:
        model: The model, on its device.
        max_length: Length of the longest training record.
        layout: Layout of the rows in a batch.
        has_units: Whether a privacy unit can have several records. If so, the 4 rows are a unit of
            two records and a unit of one record with a filler row.
    """
    device, bare = next(model.parameters()).device, layout.unpadded()
    short = min(SHORT_LENGTH, max_length)
    long = min(max_length, max(LONG_LENGTH, layout.padded_length(short) + 1))
    batches, alone = [], []
    for longest in sorted({short, long}):
        drawn = layout.synthetic(model, len(SHUFFLED), longest)
        rows = [drawn[place] for place in SHUFFLED]
        if has_units:
            units = [rows[:2], rows[2:3]]
            rows[3] = rows[2]  # the filler row
        else:
            units = [[row] for row in rows]
        batch = collated_units(units, layout)
        each, weights = layout.rows_per_record, batch.weights
        size = batch.rows_per_unit // each  # records of a unit
        batches.append(batch.to(device))
        alone.append(
            [
                replace(
                    bare.collate(rows[start : start + size]),
                    weights=None
                    if weights is None
                    else weights[start * each : (start + size) * each],
                    rows_per_unit=batch.rows_per_unit,
                ).to(device)
                for start in range(0, len(rows), size)
            ]
        )
    return SelfCheckBatches(batches=batches, alone=alone, rows_per_unit=batches[0].rows_per_unit)
