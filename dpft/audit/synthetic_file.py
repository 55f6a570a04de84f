"""A file of synthetic records, whose it is, and whether what it shows may be released.

``dpft generate`` writes a statement beside its records. It ties them to a run by the run's ledger:
what is told of records without one, or of another run's, is not covered by this run's epsilon.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpft.audit.words import written_text
from dpft.data.prompts import split_files
from dpft.data.readers import FORMATS, file_rows
from dpft.data.rows import examples_of, row_values
from dpft.errors import InputError
from dpft.evaluation.samples import spread
from dpft.records.privacy_file import (
    RunPrivacy,
    Statement,
    is_promised,
    read_statement,
    spent_on,
)
from dpft.tasks.base import TextTask
from dpft.tasks.custom_texts import CustomTexts
from dpft.tasks.records import Example, are_texts

READABLE_BY_ALL = 0o004


@dataclass(frozen=True, kw_only=True)
class SyntheticFile:
    """Synthetic records, and what is known of them."""

    path: Path
    records: Sequence[Example]
    """All of the file, in its order."""
    no_rows: int
    """Rows that were left out, since their label is none of ``task.labels``."""
    prompted: bool
    """Whether a user's prompts stand in them."""
    notes: tuple[str, ...]
    """What the statement says of their cost, in sentences."""
    why_private: str | None
    """Why nothing of them may be released, in words; None where it may."""

    def texts(self, limit: int) -> list[str]:
        """Returns what was written, evenly spread over the file, at most so many texts."""
        chosen = [self.records[at] for at in spread(len(self.records), limit)]
        return [written_text(record, prompted=self.prompted) for record in chosen]


def read_synthetic(
    run: Path, task: TextTask, file: Path, privacy: RunPrivacy | None
) -> SyntheticFile:
    """Returns the records of a file, once they are known to be synthetic as far as it can be seen.

    Args:
        run: The folder of the run that wrote them.
        task: The run's task, whose rows they are.
        file: As ``dpft generate`` wrote it.
        privacy: The run's privacy.json; None where it has none.

    Raises:
        InputError: The file is missing, empty or of another format, has a faulty row, holds the
            run's own records, or is another run's.
        StateError: The statement beside it is damaged.
    """
    records, no_rows = synthetic_records(task, file)
    for own in split_files(task):
        if file.samefile(own):
            raise InputError(
                f"synthetic must name records that a model wrote, got {str(file)!r}, which is the"
                f" run's own {own.name}."
            )
    statement = _statement(file)
    if statement is not None and privacy is not None:
        _check_written_by(run, statement, privacy)
    notes = () if statement is None else statement.notes
    prompted = bool(task.prompt_columns) if statement is None else statement.prompts != "none"
    return SyntheticFile(
        path=file,
        records=records,
        no_rows=no_rows,
        prompted=prompted,
        notes=tuple(note for note in notes if note),
        why_private=_why_private(file, statement, privacy, prompted=prompted),
    )


def synthetic_records(task: TextTask, file: Path) -> tuple[list[Example], int]:
    """Returns what a task makes of a file's rows, and how many are none by their label.

    Raises:
        InputError: As ``read_synthetic``; a message names file and line and never quotes a row.
    """
    name = str(file)
    if not name.endswith(tuple(FORMATS)):
        raise InputError(f"synthetic must end with {', '.join(FORMATS)}, got {name!r}.")
    if not file.is_file():
        raise InputError(
            f"synthetic must name a file that `dpft generate` wrote, got {name!r}, which is none."
        )
    rows = list(file_rows(file))
    kept = rows
    if isinstance(task, CustomTexts):
        kept = [row for row in rows if task.has_label(row_values(task, row, task.columns))]
    records = [record for row in kept for record in examples_of(task, row)]
    if not records:
        labeled = " whose label is of task.labels" if len(kept) < len(rows) else ""
        raise InputError(f"synthetic must hold at least one row{labeled}, got none in {name!r}.")
    assert are_texts(records)
    return list(records), len(rows) - len(kept)


def _statement(file: Path) -> Statement | None:
    """Returns what lies beside the records; None where nothing does.

    Raises:
        StateError: It is damaged.
    """
    path = file.with_name(f"{file.stem}.privacy.json")
    return read_statement(path) if path.is_file() else None


def _check_written_by(run: Path, said: Statement, privacy: RunPrivacy) -> None:
    if spent_on(said) != spent_on(privacy):
        raise InputError(
            f"synthetic must be written by the run's model, got records of {said.run},"
            f" by the statement beside them; give run=RUN, the one that wrote them, instead of"
            f" {str(run)!r}."
        )


def _why_private(
    file: Path,
    statement: Statement | None,
    privacy: RunPrivacy | None,
    *,
    prompted: bool,
) -> str | None:
    if statement is None:
        return (
            f"no {file.stem}.privacy.json lies beside the records, so nothing says that a model"
            " wrote them under a guarantee"
        )
    if privacy is None or not is_promised(privacy):
        return "the run promises no privacy, so its texts may hold training records"
    if prompted and not file.stat().st_mode & READABLE_BY_ALL:
        return "the records hold prompts in a file that its owner alone may read"
    return None
