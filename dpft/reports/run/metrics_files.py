"""metrics.json, what may be shown of a run's scores, and private/metrics.json, those of its owner.

Scores of private records, and how many were scored, are a function of single records that no
epsilon covers: two sets of records that differ by one have other digits. So an entry of a private
split stands whole in private/metrics.json alone, and metrics.json says that it is there. Where
``eval.publish_private_scores`` was asked for, it has the scores rounded to two digits as well
(docs/design.md, rule 8). The private file is written first: a crash between the two hides scores,
and never shows them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from dpft.files import write_text
from dpft.records.form import read_record, write_record
from dpft.records.scores import PRIVATE_SPLIT, Metrics, ScoreEntry, split_note
from dpft.reports.pages import render_markdown
from dpft.reports.run.scores import score_tables
from dpft.run_folder import METRICS, PRIVATE_METRICS, PRIVATE_REPORT, private_path

WHERE = f"in {PRIVATE_METRICS}, for their owner alone"
DIGITS: Final = 2
"""Significant digits of a private split's scores where they are shown at all."""


def shown(entry: ScoreEntry, *, rounded: bool | None = None) -> ScoreEntry:
    """Returns what anybody may see of an entry: of a private split, that it was scored.

    Args:
        entry: Whole, or as it was shown before.
        rounded: Whether scores of a private split are shown, rounded; None: where they were.
    """
    if not entry.is_private:
        return entry
    rounded = entry.digits is not None if rounded is None else rounded
    note = split_note(entry.split)
    hidden = replace(entry, examples=None, metrics={}, digits=None, not_computed={})
    if not (rounded and entry.metrics):
        return replace(hidden, note=f"{note}; {WHERE}")
    return replace(
        hidden,
        metrics={name: round_score(value) for name, value in entry.metrics.items()},
        digits=DIGITS,
        note=f"{note}; rounded to two digits",
    )


def round_score(value: float) -> float:
    """Returns a score with as many digits as may be shown of a private split.

    >>> round_score(12.3456), round_score(1234.5), round_score(0.98765)
    (12.0, 1200.0, 0.99)
    """
    return float(f"{value:.{DIGITS}g}")


def read_evaluations(folder: Path) -> list[ScoreEntry]:
    """Returns what metrics.json may show, an entry each; none where there is no such file.

    Of a private split that an earlier dpft wrote there whole, nothing more is returned.

    Args:
        folder: A run's, or that of an evaluation.

    Raises:
        InputError: It is of another schema version.
        StateError: It is damaged.
    """
    return [shown(entry) for entry in _read(folder / METRICS)]


def read_own_evaluations(folder: Path) -> list[ScoreEntry]:
    """Returns all entries, those of private splits as private/metrics.json has them.

    Where that is gone, as from a folder that was handed on, they are as metrics.json has them.

    Args:
        folder: As there.

    Raises:
        InputError: One of the files is of another schema version.
        StateError: One is damaged.
    """
    own = {entry.place: entry for entry in _read(folder / PRIVATE_METRICS)}
    found = []
    for entry in _read(folder / METRICS):
        kept = own.pop(entry.place, entry)
        found.append(kept if entry.is_private else entry)
    return found + list(own.values())


def write_metrics(
    folder: Path, evaluations: Sequence[ScoreEntry], *, public: bool, publish: bool = False
) -> None:
    """Writes new entries into both files; one for the same task, split and stage is replaced.

    A split that is no longer public is hidden at its other stages, too.

    Args:
        folder: A run's, or that of an evaluation; it exists.
        evaluations: Entries, of splits that were marked or not.
        public: Whether their splits may be shown.
        publish: Whether scores of these splits are shown, rounded, though they are private.
    """
    fresh = [entry.marked(public) for entry in evaluations]
    splits = {entry.place[:2] for entry in fresh}
    replaced = {entry.place for entry in fresh}
    kept = [old for old in read_own_evaluations(folder) if old.place not in replaced]
    if not public:
        kept = [old.marked(False) if old.place[:2] in splits else old for old in kept]
    _write(folder, [*kept, *fresh], {split: publish for split in splits})


def hide_private_scores(folder: Path) -> None:
    """Moves into private/ what an earlier dpft wrote of private splits into metrics.json."""
    if any(entry != shown(entry) for entry in _read(folder / METRICS)):
        _write(folder, read_own_evaluations(folder), {})


def _write(
    folder: Path, entries: Sequence[ScoreEntry], published: Mapping[tuple[str, str], bool]
) -> None:
    """Writes all entries into both files, the private one and its report first.

    Args:
        folder: It exists.
        entries: Whole as far as they are known.
        published: Splits to whether they are shown, rounded; of any other metrics.json shows what
            it showed: an edit of it must not bring more out of private/.
    """
    were = {entry.place: entry for entry in _read(folder / METRICS)}
    own = tuple(entry for entry in entries if entry.is_private and entry.examples is not None)
    if own or (folder / PRIVATE_METRICS).exists():
        tables = score_tables([entry.marked(False) for entry in own])
        report = render_markdown("private_report.md.j2", tables=tables, private_split=PRIVATE_SPLIT)
        write_record(private_path(folder, PRIVATE_METRICS), Metrics(evaluations=own), mode=0o600)
        write_text(private_path(folder, PRIVATE_REPORT), report, mode=0o600)
    public = []
    for entry in entries:
        split = entry.place[:2]
        if split in published:
            public.append(shown(entry, rounded=published[split]))
        else:
            were_shown = were.get(entry.place)
            public.append(shown(were_shown) if were_shown else shown(entry, rounded=False))
    write_record(folder / METRICS, Metrics(evaluations=tuple(public)))


def _read(path: Path) -> tuple[ScoreEntry, ...]:
    return read_record(path, Metrics).evaluations if path.exists() else ()
