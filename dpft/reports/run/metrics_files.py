"""metrics.json, what may be shown of a run's scores, and private/metrics.json, those of its owner.

Scores of private records, and how many were scored, are a function of single records that no
epsilon covers: two sets of records that differ by one have other digits. So an entry of a private
split stands whole in private/metrics.json alone, and metrics.json says that it is there. Where
``eval.publish_private_scores`` was asked for, it has the scores rounded to two digits as well
(docs/design.md, rule 8). The private file is written first: a crash between the two hides scores,
and never shows them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpft.errors import StateError
from dpft.files import read_json, write_json, write_text
from dpft.reports.pages import render_markdown
from dpft.reports.run.scores import score_tables
from dpft.run_folder import METRICS, PRIVATE_METRICS, PRIVATE_REPORT, private_path

Entry = dict[str, Any]
"""One evaluation: a split of a task, or a part of it, at one stage."""

PRIVATE_SPLIT = "computed on private held-out records, not covered by epsilon"
TRAINING_SPLIT = "computed on training records, not covered by epsilon"
WHERE = f"in {PRIVATE_METRICS}, for their owner alone"
DIGITS = 2
"""Significant digits of a private split's scores where they are shown at all."""
SHOWN_OF_PUBLIC = ("samples", "confusion")
"""What an entry has of a public split alone."""
PARTS = {"task", "split", "stage", "split_is_public", "metrics"}
"""What every entry has."""
SAMPLE_PARTS = ("input", "prediction", "reference")
"""What each of the texts of an entry has, where it has any."""


def mark(entry: Mapping[str, Any], public: bool) -> Entry:
    """Returns a whole entry with whether its split is public; if not, without texts, and a note."""
    marked = {**entry, "split_is_public": public}
    if public:
        return marked
    kept = {name: value for name, value in marked.items() if name not in SHOWN_OF_PUBLIC}
    return {**kept, "note": split_note(entry["split"])}


def shown(entry: Mapping[str, Any], *, rounded: bool | None = None) -> Entry:
    """Returns what anybody may see of an entry: of a private split, that it was scored.

    Args:
        entry: Whole, or as it was shown before.
        rounded: Whether scores of a private split are shown, rounded; None: where they were.
    """
    if not is_private(entry):
        return dict(entry)
    rounded = "digits" in entry if rounded is None else rounded
    about = {name: entry[name] for name in ("task", "split", "stage")}
    about |= {"split_is_public": False, "not_computed": {}}
    if not (rounded and entry["metrics"]):
        return {**about, "metrics": {}, "note": f"{split_note(entry['split'])}; {WHERE}"}
    metrics = {name: round_score(value) for name, value in entry["metrics"].items()}
    note = f"{split_note(entry['split'])}; rounded to two digits"
    return {**about, "metrics": metrics, "digits": DIGITS, "note": note}


def split_note(split: str) -> str:
    """Returns what stands beside scores of a split that is not public."""
    return TRAINING_SPLIT if split == "train" else PRIVATE_SPLIT


def is_private(entry: Mapping[str, Any]) -> bool:
    """Returns whether an entry is of private records; one that says why none was scored is not."""
    nothing_scored = entry.get("examples") == 0 and not entry["metrics"]
    return entry["split_is_public"] is not True and not nothing_scored


def round_score(value: float) -> float:
    """Returns a score with as many digits as may be shown of a private split.

    >>> round_score(12.3456), round_score(1234.5), round_score(0.98765)
    (12.0, 1200.0, 0.99)
    """
    return float(f"{value:.{DIGITS}g}")


def read_evaluations(folder: Path) -> list[Entry]:
    """Returns what metrics.json may show, an entry each; none where there is no such file.

    Of a private split that an earlier dpft wrote there whole, nothing more is returned.

    Args:
        folder: A run's, or that of an evaluation.

    Raises:
        InputError: It is of another schema version.
        StateError: It is damaged.
    """
    return [shown(entry) for entry in _read(folder / METRICS)]


def read_own_evaluations(folder: Path) -> list[Entry]:
    """Returns all entries, those of private splits as private/metrics.json has them.

    Where that is gone, as from a folder that was handed on, they are as metrics.json has them.

    Args:
        folder: As there.

    Raises:
        InputError: One of the files is of another schema version.
        StateError: One is damaged.
    """
    own = {_place(entry): entry for entry in _read(folder / PRIVATE_METRICS)}
    found = []
    for entry in _read(folder / METRICS):
        kept = own.pop(_place(entry), entry)
        found.append(kept if is_private(entry) else entry)
    return found + list(own.values())


def write_metrics(
    folder: Path, evaluations: Sequence[Mapping[str, Any]], *, public: bool, publish: bool = False
) -> None:
    """Writes new entries into both files; one for the same task, split and stage is replaced.

    A split that is no longer public is hidden at its other stages, too.

    Args:
        folder: A run's, or that of an evaluation; it exists.
        evaluations: Entries without marks.
        public: Whether their splits may be shown.
        publish: Whether scores of these splits are shown, rounded, though they are private.
    """
    fresh = [mark(entry, public) for entry in evaluations]
    splits = {_place(entry)[:2] for entry in fresh}
    replaced = {_place(entry) for entry in fresh}
    kept = [old for old in read_own_evaluations(folder) if _place(old) not in replaced]
    if not public:
        kept = [mark(old, False) if _place(old)[:2] in splits else old for old in kept]
    _write(folder, [*kept, *fresh], {split: publish for split in splits})


def hide_private_scores(folder: Path) -> None:
    """Moves into private/ what an earlier dpft wrote of private splits into metrics.json."""
    if any(entry != shown(entry) for entry in _read(folder / METRICS)):
        _write(folder, read_own_evaluations(folder), {})


def _write(
    folder: Path, entries: Sequence[Entry], published: Mapping[tuple[str, str], bool]
) -> None:
    """Writes all entries into both files, the private one and its report first.

    Args:
        folder: It exists.
        entries: Whole as far as they are known.
        published: Splits to whether they are shown, rounded; of any other metrics.json shows what
            it showed: an edit of it must not bring more out of private/.
    """
    were = {_place(entry): entry for entry in _read(folder / METRICS)}
    own = [entry for entry in entries if is_private(entry) and "examples" in entry]
    if own or (folder / PRIVATE_METRICS).exists():
        tables = score_tables([mark(entry, False) for entry in own])
        report = render_markdown("private_report.md.j2", tables=tables, private_split=PRIVATE_SPLIT)
        write_json(private_path(folder, PRIVATE_METRICS), {"evaluations": own}, mode=0o600)
        write_text(private_path(folder, PRIVATE_REPORT), report, mode=0o600)
    public = []
    for entry in entries:
        split = _place(entry)[:2]
        if split in published:
            public.append(shown(entry, rounded=published[split]))
        else:
            were_shown = were.get(_place(entry))
            public.append(shown(were_shown) if were_shown else shown(entry, rounded=False))
    write_json(folder / METRICS, {"evaluations": public})


def _read(path: Path) -> list[Entry]:
    if not path.exists():
        return []
    entries = read_json(path).get("evaluations")
    known = [entry for entry in entries if _is_entry(entry)] if entries else []
    if not isinstance(entries, list) or len(known) < len(entries):
        raise StateError(
            f"{path} is damaged: its evaluations must be a list of objects with"
            f" {', '.join(sorted(PARTS))}; put it back, or score anew without it."
        )
    return known


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not set(entry) >= PARTS:
        return False
    samples = entry.get("samples", [])
    return isinstance(samples, list) and all(
        isinstance(sample, dict) and isinstance(sample.get(part), str)
        for sample in samples
        for part in SAMPLE_PARTS
    )


def _place(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    return entry["task"], entry["split"], entry["stage"]
