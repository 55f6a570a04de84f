"""Encoded training records for the loop, and their summary in a private file.

Some records are held out for scoring, are skipped, or are truncated. The summary counts the records
of each kind.
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
    """Return the training set of the loop: the records with an answer to learn, by unit.

    Whether a record is skipped depends only on that record.

    Raises:
        InputError: No record has an answer to learn, or a canary does not fit ``max_length``.
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
    """Records as the loop receives them, with canaries last."""

    rows: EncodedRows
    """The rows that are kept: all rows with an answer to learn, and also the other rows if the
    indices of units refer to them."""
    units: list[list[int]] | None
    """Indices in ``rows`` of each unit's rows; None if each row is its own unit."""
    usable: NDArray[np.bool_]
    """Whether a row has an answer to learn, for every row of the records."""
    counts: NDArray[np.int64]
    """Number of rows of each record; more than one if the record is cut into chunks."""

    def trained_on(self) -> dict[int, list[int]]:
        """Return the rows of each record that were trained on, numbered within the record."""
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
    """Return the encoded records that training keeps, and their units; read each record once.

    Args:
        config: The configuration of the run.
        records: The records.
        owners: The units of the records; None if each record is its own unit.
        encoding: Converts records to rows.
        unit_key: Secret key that selects the rows to keep of a unit that has too many rows.
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
    """Return the encoding for training; without clipping, a record has at most one random view."""
    return encoding if config.privacy.clips is not None else encoding.by_record()


def check_canaries(canaries: Sequence[Canary], task: Task, encoding: Encoding) -> None:
    """Reject canaries that would be truncated, because the model could not learn all of them."""
    # Check every canary, included or not: words at the start of a text may have more tokens than
    # others.
    records = (canary.record(task) for canary in canaries)
    if any(map(encoding.cuts, records)):
        raise InputError(
            f"task.max_length must have room for the canaries, got {task.longest}. Raise it, or"
            " lower audit.canary_words or audit.suffix_words.",
            key="task.max_length",
            value=task.longest,
        )


def training_layout(config: TrainConfig, layout: Layout, device: torch.device) -> Layout:
    """Return the layout of rows in a micro-batch, with the padding for training."""
    multiple = config.train.bucket(device)
    return layout.for_training(multiple=multiple, longest=config.task.longest)


def _encoded(
    encoding: Encoding, records: Iterable[Record], *, keeps_empty: bool
) -> tuple[EncodedRows, NDArray[np.bool_], NDArray[np.int64]]:
    """Return the encoded rows, whether each row has an answer, and the number of rows per record.

    A record has more than one row if records are cut into chunks.
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
    """A number of records, and the number of their units if units have several records."""

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
    """Number of rows skipped because they have no answer to learn."""
    capped: int
    """Number of rows skipped because their unit has more than ``records_per_unit``."""
    records_per_unit: int | None
    """Maximum number of records of a unit; None if each record is its own unit."""
    trained: Count
    truncated: int
    """Number of rows trained on that were cut to ``max_length``."""
    max_length: int
    canaries: int = 0
    """Number of records that canaries added, according to their coin flips."""
    chunks: int = 0
    """Number of rows of long records beyond the first row of each."""
    converted: int = 0
    """Number of images converted to the model's form, such as gray images for a model of color
    images."""
    faulty: int = 0
    """Number of rows read that were skipped because the task could not read them."""
    blank: int = 0
    """Number of records read whose text is empty and whose label is learned."""
    cut: int = 0
    """Number of records read with a text that was truncated before it was tokenized."""
    on_invalid: str = REFUSED
    unreadable: tuple[str, ...] = ()
    """Names of some of the records that were skipped because they could not be read."""


def summarize(
    config: TrainConfig,
    data: TrainingData,
    division: Division,
    training_set: TrainingSet,
    *,
    canaries: int = 0,
) -> DataSummary:
    """Return the number of a run's records that were held out, skipped, cut or trained on."""
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
    """Return the content of private/data_summary.md: the counts as Markdown."""
    rows = [("read", str(summary.read))]
    if summary.on_invalid != REFUSED:
        rows.append((f"skipped: invalid (task.invalid={summary.on_invalid})", str(summary.faulty)))
    if summary.blank:
        rows.append(("with an empty text (only the label is learned)", str(summary.blank)))
    if summary.cut:
        cut = f"with a text cut to {LETTERS_PER_TOKEN} characters per token of task.max_length"
        rows.append((cut, str(summary.cut)))
    rows.append(("held out for evaluation", str(summary.held_out)))
    if summary.canaries:
        rows.append(("canaries added for audits", str(summary.canaries)))
    if summary.converted:
        rows.append(("images converted between gray and color", str(summary.converted)))
    if summary.chunks:
        rows.append(("additional rows, because records have several chunks", str(summary.chunks)))
    rows.append(("skipped: empty, with nothing to learn", str(summary.empty)))
    if summary.records_per_unit is not None:
        limit = f"skipped: beyond privacy.records_per_unit={summary.records_per_unit}"
        rows.append((limit, str(summary.capped)))
    rows.append(("trained on", str(summary.trained)))
    if summary.max_length > 1:  # 1 means that rows have no length
        cut = f"of those, cut to task.max_length={summary.max_length} tokens"
        rows.append((cut, str(summary.truncated)))
    table = [f"| {name} | {value} |" for name, value in rows]
    named = [f"- {name}" for name in summary.unreadable]
    if named:
        which = f"Skipped, because they could not be read (at most {MOST_NAMED} are listed):"
        named = ["", which, "", *named]
    heading = ["# The records of this run", "", NOTE, "", "| training records | number |"]
    return "\n".join([*heading, "|---|---:|", *table, *named, ""])
