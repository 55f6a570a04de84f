"""The audit ``audit=synthetic``: how much generated records reveal about single training records.

The audit counts copies of training records and, for comparison, of records that were not trained
on. Tables that depend only on the synthetic texts and on a published split may be released with the
texts. All other tables are private. Removing a synthetic record because it is close to a training
record is not post-processing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dpft.audit.base import AUDITS, Audit, AuditedRun, Finding
from dpft.data.canaries import (
    KeptCanaries,
)
from dpft.data.raw_rows import FORMATS, file_rows
from dpft.data.rows import examples_of, row_values, split_files
from dpft.errors import InputError
from dpft.evaluation.predictions import spread
from dpft.evaluation.text_overlap import whole_text, words_of
from dpft.reports.privacy_json import (
    PrivateRun,
    RunPrivacy,
    guarantee,
    is_promised,
    read_statement,
)
from dpft.reports.rendering import line, render_page
from dpft.reports.terminal import Grid
from dpft.run_folder import (
    CANARIES,
    PRIVATE_SYNTHETIC_AUDIT,
    SYNTHETIC_AUDIT,
    audit_path,
    hold_run,
    private_audit_path,
    write_text,
)
from dpft.strict_model import AtLeastOne, NotNegative, Versioned, read_model
from dpft.synthesis.records import OWNERS, Comparison, grid, sections
from dpft.tasks.base import TextTask
from dpft.tasks.custom import CustomTexts

OWNERS_ALONE = (
    "private: it compares with records that were trained on or held out, no epsilon covers it, and"
    " it stays with the owner of the data"
)
READABLE_BY_ALL = 0o004


@AUDITS.register("synthetic")
class SyntheticConfig(Audit):
    """Configuration of the audit, conf/audit/synthetic.yaml."""

    name: str = "synthetic"
    limit: AtLeastOne = 10_000
    """Maximum number of records of each kind to compare, selected at even spacing."""

    def find(self, run: AuditedRun) -> Finding:
        """See ``Audit.find``; write a private page and, if it may be released, a public page."""
        from dpft.audit.audited_run import Unseen, check_writes_texts, records_and_unseen
        from dpft.commands.task_model import trained_model_of_run
        from dpft.synthesis.measures import copies

        # 1. Read the run's records, or the reason why they are not available, and the synthetic
        # records.
        task = check_writes_texts(run.config)
        encoding = trained_model_of_run(run.folder, run.config).encoding(task, max_new_tokens=None)
        records, unseen = records_and_unseen(run.folder, run.config, encoding)
        assert run.synthetic is not None
        file = read_synthetic(run.folder, task, run.synthetic.expanduser(), run.privacy)
        texts = file.texts(file.records, self.limit)
        remarks: list[str] = []
        training_texts: list[str] = []
        other_texts: list[str] = []
        published = False
        if isinstance(records, str):
            remarks.append(f"Not compared with training records: {records}")
        else:
            training_texts = file.texts(records.training, self.limit)
        if isinstance(unseen, Unseen):
            other_texts, published = file.texts(unseen.records, self.limit), unseen.public
        else:
            remarks.append(f"Not compared with other records: {unseen}")
        if file.no_rows:
            remarks.append(f"{file.no_rows} rows have a label that is not in task.labels.")
        if file.why_private is not None:
            remarks.append(f"Do not release these results: {file.why_private}.")

        # 2. Compare them; only comparisons without private records may be released.
        compared = released = _shapes({"synthetic": texts})
        if other_texts:
            compared = _shapes({"synthetic": texts, "other records": other_texts})
            released = compared if published else released
        epsilon, delta = guarantee(run.privacy) if is_promised(run.privacy) else (None, None)
        with hold_run(run.folder):
            copied = [copies(texts, training_texts, other_texts or None)] if training_texts else []
            record = SyntheticAudit(
                note=OWNERS_ALONE,
                synthetic=file.path.name,
                limit=self.limit,
                released=(released,),
                compared=(*copied, _canaries(run.folder, texts), compared),
                remarks=tuple(remarks),
                epsilon=epsilon,
                delta=delta,
                not_released=file.why_private,
            )

            # 3. Write the pages.
            title = f"# Synthetic records: {line(file.path.name)}"
            path = private_audit_path(run.folder, PRIVATE_SYNTHETIC_AUDIT)
            page = [*file.notes, OWNERS, title, *map(line, remarks), *sections(record.compared)]
            write_text(path, render_page("Synthetic records", "\n\n".join(page)), mode=0o600)
            pages = [f"Private page with all tables: {path}"]
            (run.folder / SYNTHETIC_AUDIT).unlink(missing_ok=True)  # from an earlier audit
            if file.why_private is None:
                page = [*file.notes, title, *sections(record.released)]
                path = audit_path(run.folder, SYNTHETIC_AUDIT)
                write_text(path, render_page("Synthetic records", "\n\n".join(page)))
                pages.append(f"A page that may be released: {path}")

        parts: list[Grid | str] = []
        for table in record.compared:
            parts += [grid(table), *([table.note] if table.note else [])] if table.rows else []
        parts += [*remarks, f"This is {OWNERS_ALONE}."]
        return Finding(record=record, parts=parts, files=pages)


class SyntheticAudit(Versioned):
    """Usefulness of synthetic records, and how much they reveal about single records."""

    audit: Literal["synthetic"] = "synthetic"
    """Name of the audit."""
    note: str
    """Statement of who may see the result."""
    private: Literal[True] = True
    """Always true, because the result contains comparisons with private records."""
    synthetic: str
    """Name of the file of synthetic records."""
    limit: AtLeastOne
    """Maximum number of records of each kind."""
    released: tuple[Comparison, ...]
    """Tables that depend only on the synthetic records and on published records."""
    compared: tuple[Comparison, ...]
    """All tables, including tables that compare with private records."""
    remarks: tuple[str, ...]
    """Comparisons that were not made and the reasons, one sentence each."""
    epsilon: NotNegative | None = None
    """Epsilon of the run; absent for a non-private run."""
    delta: NotNegative | None = None
    """Delta of the run; absent for a non-private run."""
    not_released: str | None = None
    """Reason why nothing may be released; absent if audit/synthetic.html was written."""


@dataclass(frozen=True, kw_only=True)
class SyntheticFile:
    """Synthetic records, with information about their origin."""

    path: Path
    records: Sequence[Any]
    no_rows: int
    """Number of rows that were skipped because their label is not in ``task.labels``."""
    prompted: bool
    """Whether the records contain prompts of a user."""
    notes: tuple[str, ...]
    """Notes about the privacy cost of the records, from their privacy statement."""
    why_private: str | None
    """Reason why nothing about the records may be released; None if it may be released."""

    def texts(self, records: Sequence[Any], limit: int) -> list[str]:
        """Return the texts that the model would generate for at most ``limit`` of the records."""
        chosen = [records[at] for at in spread(len(records), limit)]
        is_whole = not self.prompted
        return [whole_text(e) if e.learns_prompt and is_whole else e.target for e in chosen]


def read_synthetic(
    run: Path, task: TextTask, file: Path, privacy: RunPrivacy | None
) -> SyntheticFile:
    """Return the records of a file; reject records that are known not to be synthetic.

    Raises:
        InputError: The file is missing, is empty, has another format, or contains an invalid row.
            The file contains the run's own records, or belongs to another run.
        StateError: The privacy statement next to the file is damaged.
    """
    if not file.name.endswith(tuple(FORMATS)) or not file.is_file():
        raise InputError(
            "synthetic must name a file that `dpft generate` wrote, ending with"
            f" {', '.join(FORMATS)}, got {str(file)!r}.",
            key="synthetic",
            value=str(file),
        )
    rows = kept = list(file_rows(file))
    if isinstance(task, CustomTexts):
        kept = [row for row in rows if task.has_label(row_values(task, row, task.columns))]
    records = [record for row in kept for record in examples_of(task, row)]
    if not records:
        labeled = " with a label of task.labels" if len(kept) < len(rows) else ""
        raise InputError(
            f"synthetic must contain at least one row{labeled}, got none in {file}.",
            key="synthetic",
            value=str(file),
        )
    for split_file in split_files(task):
        if file.samefile(split_file):
            raise InputError(
                f"synthetic must name generated records, got {str(file)!r}, which is the run's own"
                f" {split_file.name}.",
                key="synthetic",
                value=str(file),
            )
    path = file.with_name(f"{file.stem}.privacy.json")
    statement = read_statement(path) if path.is_file() else None
    written_by = statement and statement.guarantee
    ledgers = [record.ledger for record in (written_by, privacy) if isinstance(record, PrivateRun)]
    if statement and privacy and (len(ledgers) == 1 or len({*ledgers}) > 1):
        raise InputError(
            f"synthetic must contain records of the run's model, but according to {path.name} they"
            f" are records of {statement.run}. Give run=RUN of that run instead of {str(run)!r}.",
            key="synthetic",
            value=str(file),
        )
    prompted = bool(task.prompt_columns) if statement is None else statement.prompts != "none"
    why_private = None
    if statement is None:
        why_private = (
            f"there is no {path.name} next to the records to show that a model with a guarantee"
            " generated them"
        )
    elif privacy is None or not is_promised(privacy):
        why_private = "the run has no guarantee, so its texts may contain training records"
    elif prompted and not file.stat().st_mode & READABLE_BY_ALL:
        why_private = "the records contain prompts, and only their owner can read the file"
    return SyntheticFile(
        path=file,
        records=records,
        no_rows=len(rows) - len(kept),
        prompted=prompted,
        notes=tuple(line(note) for note in ([] if statement is None else statement.notes) if note),
        why_private=why_private,
    )


def _shapes(sides: Mapping[str, Sequence[str]]) -> Comparison:
    """Return statistics of each kind of texts; for two kinds, also a classifier's accuracy."""
    from dpft.synthesis.measures import classifier_accuracy

    measures = []
    for texts in sides.values():
        words = [words_of(text) for text in texts]
        lengths = [len(text_words) for text_words in words]
        distinct = 100 * len(set(texts)) / len(texts)
        different = 100 * len(set().union(*words)) / max(1, sum(lengths))
        quantiles = np.quantile(lengths, (0.05, 0.95)).tolist()
        measures.append((len(texts), distinct, float(np.mean(lengths)), *quantiles, different))
    names = (
        "texts", "distinct texts, %", "words: mean", "words: 5 % quantile",
        "words: 95 % quantile", "distinct words, % of all",
    )  # fmt: skip
    rows = dict(zip(names, zip(*measures, strict=True), strict=True))
    accuracy = classifier_accuracy(*sides.values()) if len(sides) == 2 else None
    note = None
    if accuracy is not None:
        note = f"A classifier tells both kinds apart with {accuracy:.1%} accuracy (guessing: 50 %)."
    return Comparison(title="The texts", columns=tuple(sides), rows=rows, note=note)


def _canaries(run: Path, texts: Sequence[str]) -> Comparison:
    """Return the number of the run's canaries that the texts contain."""
    all_texts, path = "\n".join(texts), run / CANARIES
    all_canaries = read_model(path, KeptCanaries).canaries if path.exists() else ()
    rows: dict[str, tuple[float, ...]] = {}
    for name, included in (("included", True), ("not included", False)):
        canaries = [canary for canary in all_canaries if canary.included == included]
        is_found = [any(text.strip() in all_texts for text in canary.texts) for canary in canaries]
        rows |= {name: (len(canaries), sum(is_found))} if canaries else {}
    return Comparison(title="Canaries", columns=("canaries", "found"), rows=rows)
