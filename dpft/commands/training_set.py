"""Encode the training records for the loop, and summarize them in a private file.

Of the records that were read some are held out, left out and why, or cut; the rest is trained on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from dpft.commands.splits import (
    Division,
    TrainingData,
)
from dpft.config.schema import TrainConfig
from dpft.data.batches import EncodedRows, Layout
from dpft.data.canaries import Canary, copies_of
from dpft.data.encoding import Encoding, encoded_rows
from dpft.data.sources import LETTERS_PER_TOKEN
from dpft.data.training_records import TOGETHER, batched, bounded_units, drained, units_of_chunks
from dpft.errors import InputError
from dpft.machine import return_freed_memory
from dpft.privacy.plan import EXAMPLE
from dpft.tasks.base import REFUSED, Record, Task
from dpft.training.loop import TrainingSet


def make_training_set(
    config: TrainConfig,
    data: TrainingData,
    encoding: Encoding,
    device: torch.device,
    *,
    unit_key: bytes,
    canaries: Sequence[Canary] = (),
) -> TrainingSet:
    """Return what the loop trains on: the records that have anything to learn, by unit.

    Whether a record is left out depends on that record alone.

    Raises:
        InputError: No record has anything to learn, or a canary does not fit ``max_length``.
    """
    check_canaries(canaries, config.task, encoding)
    added = copies_of(canaries, config.task)
    records = chain(drained(data.examples), (record for record, _ in added))
    owners = None if data.units is None else [*data.units, *(unit for _, unit in added)]
    encoded = encode_records(config, records, owners, encoding, unit_key=unit_key)
    if not any(encoded.usable):
        raise InputError(
            f"The training records of task={config.task.name} have no answer to learn, because each"
            " answer is empty. Check the columns and templates of the task.",
            key="task",
            value=config.task.name,
        )
    return TrainingSet(
        examples=encoded.rows,
        micro_batch_size=config.train.most_rows,
        micro_batch_tokens=config.train.micro_batch_tokens,
        layout=training_layout(config, encoding.layout, device),
        device=device,
        units=encoded.units,
        view=_of_steps(config, encoding).view,
        excluded=len(encoded.usable) - int(encoded.usable.sum()),
    )


@dataclass(frozen=True, kw_only=True)
class EncodedRecords:
    """Records as the loop is given them, canaries last."""

    rows: EncodedRows
    """Those that are kept: all that have anything to learn, and the others where units need them
    for their places."""
    units: list[list[int]] | None
    """Places in ``rows`` of each unit's; None: each row is a unit of its own."""
    usable: NDArray[np.bool_]
    """Whether a row has anything to learn, of every row of the records."""
    counts: NDArray[np.int64]
    """How many rows each record has; more than one where it is cut into chunks."""

    def trained_on(self) -> dict[int, list[int]]:
        """Return the place of each record that was trained on, to the numbers of its rows."""
        owners = np.repeat(np.arange(len(self.counts)), self.counts)
        first = np.cumsum(self.counts) - self.counts
        kept = np.flatnonzero(self.usable) if self.units is None else chain(*self.units)
        rows_by_record: dict[int, list[int]] = {}
        for row in map(int, kept):
            record = int(owners[row])
            rows_by_record.setdefault(record, []).append(row - int(first[record]))
        return rows_by_record


def encode_records(
    config: TrainConfig,
    records: Iterable[Record],
    owners: Sequence[str] | None,
    encoding: Encoding,
    *,
    unit_key: bytes,
) -> EncodedRecords:
    """Return what training keeps of some records, and whose it is; each is asked for once.

    ``owners`` are their units; None: a record is one. The key decides which rows of a unit of too
    many are kept.
    """
    guarantee, clips = config.privacy.guarantee, config.privacy.clips is not None
    in_chunks = config.task.most_rows > 1 and config.privacy.unit == EXAMPLE
    keeps_empty = clips and (owners is not None or in_chunks)
    encoding = _of_steps(config, encoding)
    rows, usable, counts = _encoded(encoding, records, keeps_empty=keeps_empty)
    units = None
    if in_chunks and clips:
        units = units_of_chunks(counts, usable)
    if owners is not None and guarantee is not None:
        units = bounded_units(
            np.repeat(np.array(owners, object), counts).tolist(),
            usable=usable,
            records_per_unit=guarantee.records_per_unit,
            key=unit_key,
        )
    return_freed_memory()
    return EncodedRecords(rows=rows, units=units, usable=usable, counts=counts)


def _of_steps(config: TrainConfig, encoding: Encoding) -> Encoding:
    """Return how records become rows of a run's steps, which clip or do not."""
    return encoding if config.privacy.clips is not None else encoding.by_record()


def check_canaries(canaries: Sequence[Canary], task: Task, encoding: Encoding) -> None:
    """Reject canaries that would be cut: the model could not learn what an audit looks for."""
    # Each of them, left out or not: words that begin a text may be more tokens than others.
    records = (canary.record(task) for canary in canaries)
    if any(map(encoding.cuts, records)):
        raise InputError(
            f"task.max_length must have room for the canaries, got {task.longest}. Raise it, or"
            " lower audit.canary_words or audit.suffix_words.",
            key="task.max_length",
            value=task.longest,
        )


def training_layout(config: TrainConfig, layout: Layout, device: torch.device) -> Layout:
    """Return how rows lie in a micro-batch: as in any batch, and padded as training asks for."""
    multiple = config.train.bucket(device)
    return layout.for_training(multiple=multiple, longest=config.task.longest)


def _encoded(
    encoding: Encoding, records: Iterable[Record], *, keeps_empty: bool
) -> tuple[EncodedRows, NDArray[np.bool_], NDArray[np.int64]]:
    """Return the records in tokens, which rows have anything to learn, and each record's number.

    The last is of rows, more than one where records are cut into chunks.
    """
    rows = encoding.rows_together([])
    usable, counts = [np.empty(0, np.bool_)], [np.empty(0, np.int64)]
    for some in batched(records, TOGETHER):
        made, rows_per_record = encoding.rows_in_chunks(some)
        counts.append(rows_per_record)
        usable.append(made.has_label)
        rows.add(made if keeps_empty else made.only(made.has_label))
    return rows, np.concatenate(usable), np.concatenate(counts)


MOST_NAMED = 100
NOTE = "Private: these numbers depend on the records and are not covered by epsilon."


@dataclass(frozen=True, kw_only=True)
class Count:
    """A number of records, and of how many units they are where units have several."""

    records: int
    units: int | None

    def __str__(self) -> str:
        return str(self.records) if self.units is None else f"{self.records}, of {self.units} units"


@dataclass(frozen=True, kw_only=True)
class DataSummary:
    """Counts of a run's records; private."""

    read: Count
    held_out: int
    empty: int
    """Left out because they have no answer to learn."""
    capped: int
    """Left out because their unit has more than ``records_per_unit``."""
    records_per_unit: int | None
    """Most records of a unit; None: each record is a unit of its own."""
    trained: Count
    truncated: int
    """Of those trained on, cut to ``max_length``."""
    max_length: int
    canaries: int = 0
    """Records that canaries added, as their coins said."""
    chunks: int = 0
    """Rows that long records have beyond their first one."""
    converted: int = 0
    """Of those read, made of the model's form, such as gray images where it sees colors."""
    faulty: int = 0
    """Rows left out because their task could not read them; of those read."""
    blank: int = 0
    """Of those read, whose text is empty and whose label is learned."""
    cut: int = 0
    """Of those read, of which a text was cut before it was tokenized."""
    on_invalid: str = REFUSED
    unreadable: tuple[str, ...] = ()
    """Names of some of those left out because they could not be read."""


def summarize(
    config: TrainConfig,
    data: TrainingData,
    division: Division,
    training_set: TrainingSet,
    *,
    canaries: int = 0,
) -> DataSummary:
    """Return what became of the records of a run."""
    guarantee = config.privacy.guarantee
    grouped = training_set.units is not None
    units = training_set.units
    trained = range(len(training_set.examples)) if units is None else list(chain(*units))
    kept = len(division.kept)
    rows = len(training_set.examples) + (0 if grouped else training_set.excluded)
    chunks = rows - kept - canaries
    places = np.fromiter(trained, np.int64, len(trained))
    return DataSummary(
        read=Count(
            records=len(data.examples) + len(data.faulty),
            units=None if data.units is None else data.num_units,
        ),
        held_out=len(data.examples) - kept,
        empty=training_set.excluded,
        capped=rows - training_set.excluded - len(trained),
        records_per_unit=guarantee.records_per_unit if data.units and guarantee else None,
        trained=Count(
            records=len(trained),
            units=sum(map(bool, training_set.units or ())) if grouped else None,
        ),
        truncated=int(encoded_rows(training_set.examples).truncated[places].sum()),
        max_length=config.task.longest,
        canaries=canaries,
        chunks=chunks,
        converted=encoded_rows(training_set.examples).converted,
        faulty=len(data.faulty),
        blank=data.blank,
        cut=data.cut,
        on_invalid=config.task.on_invalid,
        unreadable=tuple(encoded_rows(training_set.examples).unreadable[:MOST_NAMED]),
    )


def render(summary: DataSummary) -> str:
    """Return private/data_summary.md: the counts as Markdown."""
    rows = [("read", str(summary.read))]
    if summary.on_invalid != REFUSED:
        rows.append((f"left out: faulty (task.invalid={summary.on_invalid})", str(summary.faulty)))
    if summary.blank:
        rows.append(("with an empty text, of which the label is learned", str(summary.blank)))
    if summary.cut:
        cut = f"with a text cut to {LETTERS_PER_TOKEN} letters a token of task.max_length"
        rows.append((cut, str(summary.cut)))
    rows.append(("held out, to be scored", str(summary.held_out)))
    if summary.canaries:
        rows.append(("canaries added, for audits", str(summary.canaries)))
    if summary.converted:
        rows.append(("gray images made color, or the other way round", str(summary.converted)))
    if summary.chunks:
        rows.append(("more rows, of records in several chunks", str(summary.chunks)))
    rows.append(("left out: empty, with nothing to learn", str(summary.empty)))
    if summary.records_per_unit is not None:
        limit = f"left out: beyond privacy.records_per_unit={summary.records_per_unit}"
        rows.append((limit, str(summary.capped)))
    rows.append(("trained on", str(summary.trained)))
    if summary.max_length > 1:  # of what has a length
        cut = f"of those, cut to task.max_length={summary.max_length} tokens"
        rows.append((cut, str(summary.truncated)))
    table = [f"| {name} | {value} |" for name, value in rows]
    named = [f"- {name}" for name in summary.unreadable]
    if named:
        which = f"Could not be read, and so left out (at most {MOST_NAMED} named):"
        named = ["", which, "", *named]
    heading = ["# The records of this run", "", NOTE, "", "| training records | number |"]
    return "\n".join([*heading, "|---|---:|", *table, *named, ""])
