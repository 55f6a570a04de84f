"""What became of the records that were read: held out, left out and why, cut, trained on.

Its numbers depend on the records, so they stand in the run's private/ and nowhere else. Read,
less held out, with the canaries that were included, less left out is trained on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpft.config.schema import TrainConfig
from dpft.data.sources import LETTERS_PER_TOKEN
from dpft.data.token_rows import encoded_rows
from dpft.files import write_text
from dpft.run_folder import DATA_SUMMARY, private_path
from dpft.runs.held_out import Division
from dpft.runs.training_data import TrainingData
from dpft.tasks.base import REFUSED
from dpft.training.loop import TrainingSet

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
    """Returns what became of the records of a run.

    Args:
        config: The run's.
        data: Every record that was read.
        division: Which of them are held out.
        training_set: What was made of the others, and of canaries.
        canaries: How many records these added.
    """
    guarantee = config.privacy.guarantee
    grouped = training_set.units is not None
    trained = _trained_on(training_set)
    kept = len(division.kept)
    rows = len(training_set.examples) + (0 if grouped else training_set.excluded)
    chunks = rows - kept - canaries
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
        truncated=_truncated(training_set, trained),
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


def write_summary(folder: Path, summary: DataSummary) -> None:
    """Writes private/data_summary.md, for the owner alone."""
    write_text(private_path(folder, DATA_SUMMARY), render(summary), mode=0o600)


def render(summary: DataSummary) -> str:
    """Returns the counts as Markdown."""
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


def _trained_on(training_set: TrainingSet) -> Sequence[int]:
    if training_set.units is None:
        return range(len(training_set.examples))
    return [at for unit in training_set.units for at in unit]


def _truncated(training_set: TrainingSet, trained: Sequence[int]) -> int:
    places = np.fromiter(trained, np.int64, len(trained))
    return int(encoded_rows(training_set.examples).truncated[places].sum())
