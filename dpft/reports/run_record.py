"""Read a run's public files into one object, and write metrics.json.

Scores of private records, and how many were scored, are a function of single records that no
epsilon covers: two sets of records that differ by one have other digits. So an entry of a private
split stands whole in private/metrics.json alone, and metrics.json says that it is there. Where
``eval.publish_private_scores`` was asked for, it has the scores rounded to two digits as well
(docs/dev/design.md, rule 8). The private file is written first: a crash between the two hides
scores, and never shows them.

A folder or a file of the user's is named by no path: those name a machine and its owner.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from dpft.config.load import load_saved
from dpft.config.schema import TrainConfig
from dpft.errors import InputError
from dpft.evaluation.scores import PRIVATE_SPLIT, Metrics, ScoreEntry, split_note
from dpft.models.source import ModelConfig
from dpft.reports.privacy_json import PrivateRun, RunPrivacy
from dpft.reports.rendering import render_markdown
from dpft.reports.scores import score_tables
from dpft.run_folder import (
    AUDIT,
    CONFIGURATION,
    METRICS,
    OVERRIDES,
    PRIVACY,
    PRIVATE_METRICS,
    PRIVATE_REPORT,
    PROGRESS,
    WRONG_IMAGES,
    is_base_model,
    private_path,
    read_yaml,
    runs_in,
    write_text,
)
from dpft.strict_model import read_model, write_model
from dpft.tasks.base import Task
from dpft.training.progress_record import ProgressLine, read_progress

WHERE = f"in {PRIVATE_METRICS}, for their owner alone"
DIGITS: Final = 2
"""Significant digits of a private split's scores where they are shown at all."""


def shown(entry: ScoreEntry, *, rounded: bool | None = None) -> ScoreEntry:
    """Return what anybody may see of an entry: of a private split, that it was scored.

    Args:
        entry: Whole, or as it was shown before.
        rounded: Whether scores of a private split are shown, rounded; None: where they were.
    """
    if not entry.is_private:
        return entry
    rounded = entry.digits is not None if rounded is None else rounded
    note = split_note(entry.split)
    hidden = entry.replace(examples=None, metrics={}, digits=None, not_computed={})
    if not (rounded and entry.metrics):
        return hidden.replace(note=f"{note}; {WHERE}")
    return hidden.replace(
        metrics={name: round_score(value) for name, value in entry.metrics.items()},
        digits=DIGITS,
        note=f"{note}; rounded to two digits",
    )


def round_score(value: float) -> float:
    """Return a score with as many digits as may be shown of a private split.

    >>> round_score(12.3456), round_score(1234.5), round_score(0.98765)
    (12.0, 1200.0, 0.99)
    """
    return float(f"{value:.{DIGITS}g}")


def read_evaluations(folder: Path) -> list[ScoreEntry]:
    """Return what metrics.json may show, an entry each; none where there is no such file.

    Of a private split, nothing more is returned, whatever the file contains.
    """
    return [shown(entry) for entry in _read(folder / METRICS)]


def read_own_evaluations(folder: Path) -> list[ScoreEntry]:
    """Return all entries, those of private splits as private/metrics.json has them.

    If that file is missing, as in a released folder, entries are as metrics.json has them.
    """
    private_entries = {entry.place: entry for entry in _read(folder / PRIVATE_METRICS)}
    entries = []
    for entry in _read(folder / METRICS):
        kept = private_entries.pop(entry.place, entry)
        entries.append(kept if entry.is_private else entry)
    return entries + list(private_entries.values())


def write_metrics(
    folder: Path, evaluations: Sequence[ScoreEntry], *, public: bool, publish: bool = False
) -> None:
    """Write new entries into both files; one for the same task, split and stage is replaced.

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


def _write(
    folder: Path, entries: Sequence[ScoreEntry], published: Mapping[tuple[str, str], bool]
) -> None:
    """Write all entries into both files, the private file and its report first.

    Args:
        folder: An existing folder.
        entries: Whole as far as they are known.
        published: Splits to whether they are shown, rounded; of any other metrics.json shows what
            it showed: an edit of it must not bring more out of private/.
    """
    were = {entry.place: entry for entry in _read(folder / METRICS)}
    private_entries = tuple(
        entry for entry in entries if entry.is_private and entry.examples is not None
    )
    if private_entries or (folder / PRIVATE_METRICS).exists():
        tables = score_tables([entry.marked(False) for entry in private_entries])
        report = render_markdown("private_report.md.j2", tables=tables, private_split=PRIVATE_SPLIT)
        metrics = Metrics(evaluations=private_entries)
        write_model(private_path(folder, PRIVATE_METRICS), metrics, mode=0o600)
        write_text(private_path(folder, PRIVATE_REPORT), report, mode=0o600)
    public = []
    for entry in entries:
        split = entry.place[:2]
        if split in published:
            public.append(shown(entry, rounded=published[split]))
        else:
            were_shown = were.get(entry.place)
            public.append(shown(were_shown) if were_shown else shown(entry, rounded=False))
    write_model(folder / METRICS, Metrics(evaluations=tuple(public)))


def _read(path: Path) -> tuple[ScoreEntry, ...]:
    return read_model(path, Metrics).evaluations if path.exists() else ()


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run's public files, read."""

    folder: Path
    config: TrainConfig
    """What config.yaml says."""
    values: Mapping[str, Any]
    """All of config.yaml."""
    privacy: RunPrivacy
    """What the run guarantees."""
    evaluations: list[ScoreEntry]
    """Entries of metrics.json, which of private splits say no more than may be shown; none where
    nothing was scored."""
    overrides: tuple[str, ...] | None
    """What the user wrote after ``dpft train``; None where that is not recorded."""
    progress: tuple[ProgressLine, ...] = ()
    """Lines of progress.jsonl."""
    audit_figures: tuple[str, ...] = ()
    """Figures that audits left in the public part of its folder, as SVG."""
    pictures: Mapping[str, bytes] = field(default_factory=dict)
    """Images that were wrongly classed, by the name of their file."""

    @property
    def is_of_search(self) -> bool:
        """Whether it is the best of a search."""
        return isinstance(self.privacy, PrivateRun) and self.privacy.selection is not None

    def after(self) -> list[ScoreEntry]:
        """Return the scores of the trained model, an entry for each task and split."""
        return self._of_stage("after")

    def before(self) -> list[ScoreEntry]:
        """Return the scores before training, an entry for each task and split."""
        return self._of_stage("before")

    def _of_stage(self, stage: str) -> list[ScoreEntry]:
        return [entry for entry in self.evaluations if entry.stage == stage]


def read_run(folder: Path, privacy: RunPrivacy) -> RunRecord:
    """Return what a run's public files say beside what it guarantees."""
    try:
        values = dict(read_yaml(folder / CONFIGURATION))
        figures = sorted((folder / AUDIT).glob("*.svg"))
        stem, _, suffix = WRONG_IMAGES.partition(".")
        return RunRecord(
            folder=folder,
            config=load_saved(folder / CONFIGURATION, TrainConfig),
            values=values,
            privacy=privacy,
            evaluations=read_evaluations(folder),
            overrides=read_overrides(folder),
            progress=tuple(read_progress(folder / PROGRESS)),
            audit_figures=tuple(path.read_text(encoding="utf-8") for path in figures),
            pictures={path.name: path.read_bytes() for path in folder.glob(f"{stem}*.{suffix}")},
        )
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"cannot read the run in {folder}: {reason}.", key=str(folder)) from error


def with_own_scores(record: RunRecord) -> RunRecord:
    """Return a run's record with the scores of private splits that its owner has in private/."""
    return replace(record, evaluations=read_own_evaluations(record.folder))


def read_overrides(folder: Path) -> tuple[str, ...] | None:
    """Return what the user wrote after ``dpft train``; None where that is not recorded."""
    path = folder / OVERRIDES
    if not path.exists():
        return None
    return tuple(map(str, read_yaml(path) or ()))


def find_runs(named: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the folders of finished runs, and those of runs that have no report yet.

    Args:
        named: Folders of runs, or of sweeps, whose runs are taken in the order of their numbers.
    """
    runs = [run for folder in named for run in runs_in(folder)]
    distinct = list({run.resolve(): run for run in runs}.values())
    finished = [run for run in distinct if (run / PRIVACY).exists()]
    return finished, [run for run in distinct if run not in finished]


def model_name(model: ModelConfig) -> str:
    """Return what the base is called, of a folder its last part alone."""
    if model.path and not is_base_model(model.path):
        return Path(model.path).name
    return model.name


def model_title(config: TrainConfig, privacy: RunPrivacy) -> str:
    """Return what the base is called where its kind is said, too, as the run wrote it down."""
    return privacy.model or model_name(config.model)


def with_kind(name: str, folder: Path | None) -> str:
    """Return a model's name with the type that its config.json states, such as ``mine (bert)``.

    Args:
        name: What it is called.
        folder: With its config.json; None: the name says what it is.
    """
    if folder is None:
        return name
    try:
        kind = json.loads((folder / "config.json").read_text("utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError):  # whoever loads it says what is wrong with it
        kind = None
    return f"{name} ({kind})" if isinstance(kind, str) else name


def data_name(task: Task) -> str:
    """Return the task and the source of its rows, such as ``e2e (embedded sample)``."""
    source = "local" if task.data_dir is not None else task.source
    descriptions = {
        "local": "local files",
        "embedded": "embedded sample",
        "memory": "rows given by a program",
        "hub": f"{task.hub_name} on the hub",
        "url": "the addresses of task.urls",
    }
    return f"{task.name} ({descriptions.get(source, source)})" if source else task.name
