"""``audit=synthetic``: what records that a run's model wrote reveal of single records.

Copies are counted for training records and, for comparison, for records that were not trained on.
Tables that follow from the synthetic texts and a published split may be released with them; all
others are private. Leaving out a synthetic record because it is close to a training record is not
post-processing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpft.commands.guarantee import privacy_of
from dpft.commands.splits import KeptCanaries
from dpft.data.raw_rows import FORMATS, file_rows
from dpft.data.rows import examples_of, row_values, split_files
from dpft.errors import InputError
from dpft.evaluation.predictions import spread
from dpft.evaluation.text_overlap import whole_text, words_of
from dpft.reports.pages import line, render_page
from dpft.reports.promises import (
    PrivateRun,
    RunPrivacy,
    guarantee,
    is_promised,
    read_statement,
)
from dpft.reports.terminal import Grid
from dpft.run_folder import (
    CANARIES,
    PRIVACY,
    PRIVATE_SYNTHETIC_AUDIT,
    SYNTHETIC_AUDIT,
    audit_path,
    hold_run,
    private_audit_path,
    write_text,
)
from dpft.strict_model import read_model
from dpft.synthesis.measures import copies, told_apart
from dpft.synthesis.records import Comparison, SyntheticAudit
from dpft.synthesis.report import OWNERS, grid, sections
from dpft.tasks.base import TextTask
from dpft.tasks.custom import CustomTexts

Records = Sequence[Any] | str
OWNERS_ALONE = (
    "private: it compares with records that were trained on or held out, no epsilon covers it, and"
    " it stays with the owner of the data"
)
READABLE_BY_ALL = 0o004


@dataclass(frozen=True, kw_only=True)
class SyntheticFile:
    """Synthetic records, and what is known of them."""

    path: Path
    records: Sequence[Any]
    no_rows: int
    """Rows that were left out, because their label is not one of ``task.labels``."""
    prompted: bool
    """Whether they contain a user's prompts."""
    notes: tuple[str, ...]
    """What their statement says of their cost."""
    why_private: str | None
    """Why nothing of them may be released; None if it may."""

    def texts(self, records: Sequence[Any], limit: int) -> list[str]:
        """Return what the model would write of records, of at most ``limit`` of them."""
        chosen = [records[at] for at in spread(len(records), limit)]
        is_whole = not self.prompted
        return [whole_text(e) if e.learns_prompt and is_whole else e.target for e in chosen]


def audit_synthetic(
    run: Path,
    task: TextTask,
    path: Path,
    *,
    training: Records,
    others: Records,
    published: bool,
    limit: int,
) -> tuple[SyntheticAudit, list[str]]:
    """Compare synthetic records with a run's, and write a private page and one to release.

    Args:
        run: The folder of the run.
        task: The task of the run.
        path: The file of synthetic records.
        training: The training records, or why they are not available.
        others: Records that were not trained on, or why there are none.
        published: Whether the others are published.
        limit: Most records of each kind.

    Returns:
        The record, and sentences that name the pages.

    Raises:
        InputError: The records are not those of the run's model.
        StateError: A file of the run is damaged.
    """
    privacy = privacy_of(run) if (run / PRIVACY).exists() else None
    file = read_synthetic(run, task, path.expanduser(), privacy)
    remarks = [
        f"Not compared with {name}: {why}"
        for name, why in (("training records", training), ("other records", others))
        if isinstance(why, str)
    ]
    if file.no_rows:
        remarks.append(f"{file.no_rows} rows have a label that is none of task.labels.")
    if file.why_private is not None:
        remarks.append(f"Nothing of this may be released: {file.why_private}.")
    texts = file.texts(file.records, limit)
    trained, unseen = (
        [] if isinstance(side, str) else file.texts(side, limit) for side in (training, others)
    )
    shapes = released = _shapes({"synthetic": texts})
    if unseen:
        shapes = _shapes({"synthetic": texts, "other records": unseen})
        released = shapes if published else released
    promise = guarantee(privacy) if privacy and is_promised(privacy) else (None, None)
    with hold_run(run):
        copied = [copies(texts, trained, unseen or None)] if trained else []
        record = SyntheticAudit(
            note=OWNERS_ALONE,
            synthetic=file.path.name,
            limit=limit,
            released=(released,),
            compared=(*copied, _canaries(run, texts), shapes),
            remarks=tuple(remarks),
            epsilon=promise[0],
            delta=promise[1],
            not_released=file.why_private,
        )
        return record, _write_pages(run, file, record)


def _write_pages(run: Path, file: SyntheticFile, record: SyntheticAudit) -> list[str]:
    title = f"# Synthetic records: {line(file.path.name)}"
    place = private_audit_path(run, PRIVATE_SYNTHETIC_AUDIT)
    text = [*file.notes, OWNERS, title, *map(line, record.remarks), *sections(record.compared)]
    write_text(place, render_page("Synthetic records", "\n\n".join(text)), mode=0o600)
    pages = [f"A page with all tables, for the owner of the data alone: {place}"]
    (run / SYNTHETIC_AUDIT).unlink(missing_ok=True)  # of an earlier audit
    if file.why_private is None:
        text = [*file.notes, title, *sections(record.released)]
        place = audit_path(run, SYNTHETIC_AUDIT)
        write_text(place, render_page("Synthetic records", "\n\n".join(text)))
        pages.append(f"A page that may be released: {place}")
    return pages


def audit_parts(record: SyntheticAudit) -> list[Grid | str]:
    """Return the output for a terminal."""
    tables = [table for table in record.compared if table.rows]
    parts = [part for table in tables for part in (grid(table), table.note) if part]
    return [*parts, *record.remarks, f"This is {OWNERS_ALONE}."]


def read_synthetic(
    run: Path, task: TextTask, file: Path, privacy: RunPrivacy | None
) -> SyntheticFile:
    """Return the records of a file, if they are synthetic as far as that can be known.

    Raises:
        InputError: The file is missing, empty or of another format, contains an invalid row or the
            run's own records, or is of another run.
        StateError: The statement beside it is damaged.
    """
    if not file.name.endswith(tuple(FORMATS)) or not file.is_file():
        raise InputError(
            f"synthetic must name a file that `dpft generate` wrote, ending with"
            f" {', '.join(FORMATS)}, got {str(file)!r}."
        )
    rows = kept = list(file_rows(file))
    if isinstance(task, CustomTexts):
        kept = [row for row in rows if task.has_label(row_values(task, row, task.columns))]
    records = [record for row in kept for record in examples_of(task, row)]
    if not records:
        labeled = " whose label is of task.labels" if len(kept) < len(rows) else ""
        raise InputError(f"synthetic must hold at least one row{labeled}, got none in {file}.")
    for own in split_files(task):
        if file.samefile(own):
            raise InputError(
                f"synthetic must name records that a model wrote, got {str(file)!r}, which is the"
                f" run's own {own.name}."
            )
    path = file.with_name(f"{file.stem}.privacy.json")
    said = read_statement(path) if path.is_file() else None
    written_by = said and said.guarantee
    ledgers = [each.ledger for each in (written_by, privacy) if isinstance(each, PrivateRun)]
    if said and privacy and (len(ledgers) == 1 or len({*ledgers}) > 1):
        raise InputError(
            f"synthetic must be written by the run's model, got records of {said.run}, by the"
            " statement beside them; give run=RUN, the one that wrote them, instead of"
            f" {str(run)!r}."
        )
    prompted = bool(task.prompt_columns) if said is None else said.prompts != "none"
    why_private = None
    if said is None:
        why_private = (
            f"no {path.name} lies beside the records, so nothing says that a model wrote them under"
            " a guarantee"
        )
    elif privacy is None or not is_promised(privacy):
        why_private = "the run promises no privacy, so its texts may hold training records"
    elif prompted and not file.stat().st_mode & READABLE_BY_ALL:
        why_private = "the records hold prompts in a file that its owner alone may read"
    return SyntheticFile(
        path=file,
        records=records,
        no_rows=len(rows) - len(kept),
        prompted=prompted,
        notes=tuple(line(note) for note in ([] if said is None else said.notes) if note),
        why_private=why_private,
    )


def _shapes(sides: Mapping[str, Sequence[str]]) -> Comparison:
    """Return texts by themselves, side by side, and how often a classifier tells them apart."""
    measures = []
    for texts in sides.values():
        words = [words_of(text) for text in texts]
        lengths = [len(each) for each in words]
        distinct = 100 * len(set(texts)) / len(texts)
        different = 100 * len(set().union(*words)) / max(1, sum(lengths))
        quantiles = np.quantile(lengths, (0.05, 0.95)).tolist()
        measures.append((len(texts), distinct, float(np.mean(lengths)), *quantiles, different))
    names = (
        "texts", "different ones, %", "words: mean", "words: 5 of 100 have at most",
        "words: 95 of 100 have at most", "different words, % of all",
    )  # fmt: skip
    rows = dict(zip(names, zip(*measures, strict=True), strict=True))
    accuracy = told_apart(*sides.values()) if len(sides) == 2 else None
    note = None
    if accuracy is not None:
        note = f"A classifier tells {accuracy:.1%} of both kinds right; a coin tells 50 %."
    return Comparison(title="The texts", columns=tuple(sides), rows=rows, note=note)


def _canaries(run: Path, texts: Sequence[str]) -> Comparison:
    """Return how many of the run's canaries the texts contain."""
    everything, path = "\n".join(texts), run / CANARIES
    every = read_model(path, KeptCanaries).canaries if path.exists() else ()
    rows: dict[str, tuple[float, ...]] = {}
    for name, included in (("included", True), ("not included", False)):
        kind = [canary for canary in every if canary.included == included]
        found = [any(text.strip() in everything for text in canary.texts) for canary in kind]
        rows |= {name: (len(kind), sum(found))} if kind else {}
    return Comparison(title="Canaries", columns=("canaries", "found"), rows=rows)
