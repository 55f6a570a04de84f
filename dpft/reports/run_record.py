"""The public files of a run as one object, and the writing of metrics.json.

ε covers neither the scores of private records nor their number, because two data sets that differ
by one record have different scores. Only private/metrics.json therefore contains the whole entry of
a private split, and metrics.json only refers to it. With ``eval.publish_private_scores``,
metrics.json also contains the scores rounded to two digits (docs/dev/design.md, rule 8). The
private file is written first, so that a crash between the two writes hides scores and never shows
them.

User-specific paths are not shown, because they name a machine and its owner.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from dpft.config.load import load_saved
from dpft.config.schema import TrainConfig
from dpft.data.raw_rows import file_rows
from dpft.errors import InputError
from dpft.evaluation.predictions import Prediction
from dpft.evaluation.scores import PRIVATE_SPLIT, Metrics, ScoreEntry, split_note
from dpft.models.source import ModelConfig
from dpft.reports.privacy_json import PrivateRun, RunPrivacy
from dpft.reports.rendering import render_markdown
from dpft.reports.scores import data_title, score_tables
from dpft.run_folder import (
    AUDIT,
    CONFIGURATION,
    METRICS,
    OVERRIDES,
    PREDICTIONS,
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
from dpft.strict_model import parse, read_model, write_model
from dpft.tasks.base import Task
from dpft.training.progress_record import ProgressLine, read_progress

WHERE = f"stored in {PRIVATE_METRICS}, which only their owner can read"
DIGITS: Final = 2
"""Number of significant digits of published scores of a private split."""


def shown(entry: ScoreEntry, *, rounded: bool | None = None) -> ScoreEntry:
    """Return the public part of an entry: for a private split, only that it was scored.

    Args:
        entry: A whole entry, or an entry that is already reduced to its public part.
        rounded: Whether to show the rounded scores of a private split; None: as in ``entry``.
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
    """Return a score with as many digits as may be shown for a private split.

    >>> round_score(12.3456), round_score(1234.5), round_score(0.98765)
    (12.0, 1200.0, 0.99)
    """
    return float(f"{value:.{DIGITS}g}")


def read_evaluations(folder: Path) -> list[ScoreEntry]:
    """Return the public part of each entry of metrics.json; no entries without this file.

    An entry of a private split is reduced to its public part, even if the file contains more.
    """
    return [shown(entry) for entry in _read(folder / METRICS)]


def read_own_evaluations(folder: Path) -> list[ScoreEntry]:
    """Return all entries. Entries of private splits come from private/metrics.json.

    If this file is missing, as in a released folder, all entries come from metrics.json.
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
    """Write new entries into both files. They replace entries of the same task, split and stage.

    If a split is no longer public, its entries of other stages are hidden as well.

    Args:
        folder: Existing folder of a run or of an evaluation.
        evaluations: Entries, whether or not they are marked as public or private.
        public: Whether their splits may be shown.
        publish: Whether rounded scores of these splits are shown although they are private.
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
        entries: Entries, complete if their private part is available.
        published: Whether the rounded scores of a split are shown. For other splits, metrics.json
            is not changed, so that editing this file cannot reveal more of private/.
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
    """The content of a run's public files."""

    folder: Path
    config: TrainConfig
    """Validated content of config.yaml."""
    values: Mapping[str, Any]
    """Whole content of config.yaml."""
    privacy: RunPrivacy
    """Guarantee of the run."""
    evaluations: list[ScoreEntry]
    """Public parts of the entries of metrics.json; empty if nothing was scored."""
    overrides: tuple[str, ...] | None
    """Arguments of the user after ``dpft train``; None if they are not recorded."""
    progress: tuple[ProgressLine, ...] = ()
    """Lines of progress.jsonl."""
    audit_figures: tuple[str, ...] = ()
    """Figures of audits in the public part of the folder, as SVG."""
    wrong_images: Mapping[str, Sequence[tuple[str, str, bytes]]] = field(default_factory=dict)
    """True class, predicted class and PNG file of misclassified images, by the suffix of the name
    of their file. The suffix is empty, or the split if several splits were scored."""

    @property
    def is_of_search(self) -> bool:
        """Whether the run is the best of a search."""
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
    """Return the content of a run's public files, with its guarantee.

    Raises:
        InputError: The folder does not contain a readable run.
    """
    try:
        values = dict(read_yaml(folder / CONFIGURATION))
        figures = sorted((folder / AUDIT).glob("*.svg"))
        return RunRecord(
            folder=folder,
            config=load_saved(folder / CONFIGURATION, TrainConfig),
            values=values,
            privacy=privacy,
            evaluations=read_evaluations(folder),
            overrides=read_overrides(folder),
            progress=tuple(read_progress(folder / PROGRESS)),
            audit_figures=tuple(path.read_text(encoding="utf-8") for path in figures),
            wrong_images=_wrong_images(folder),
        )
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"cannot read the run in {folder}: {reason}.", key=str(folder)) from error


def _wrong_images(folder: Path) -> dict[str, list[tuple[str, str, bytes]]]:
    """Return the images of each sheet of misclassified images, in the order of the split."""
    images, stem = {}, Path(WRONG_IMAGES).stem
    for sheet in folder.glob(f"{stem}*.png"):
        from dpft.data.images import tiles  # It imports torch, which other reports do not need.

        split = sheet.stem.removeprefix(stem)
        predictions = folder / PREDICTIONS.replace(".", f"{split}.")
        rows = file_rows(predictions) if predictions.exists() else ()
        answers = [parse(row.values, Prediction) for row in rows]
        wrong = [(one.references[0], one.prediction) for one in answers]
        wrong = [(true, predicted) for true, predicted in wrong if true != predicted]
        pairs = zip(wrong, tiles(sheet.read_bytes()), strict=False)
        images[split] = [(*classes, content) for classes, content in pairs]
    return images


def with_own_scores(record: RunRecord) -> RunRecord:
    """Return a run's record with the scores of private splits that its owner has in private/."""
    return replace(record, evaluations=read_own_evaluations(record.folder))


def read_overrides(folder: Path) -> tuple[str, ...] | None:
    """Return the user's arguments after ``dpft train``; None if they are not recorded."""
    path = folder / OVERRIDES
    if not path.exists():
        return None
    return tuple(map(str, read_yaml(path) or ()))


def find_runs(named: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the folders of finished runs, and the folders of runs without a report.

    Args:
        named: Folders of runs or of sweeps; the runs of a sweep are in the order of their numbers.
    """
    runs = [run for folder in named for run in runs_in(folder)]
    distinct = list({run.resolve(): run for run in runs}.values())
    finished = [run for run in distinct if (run / PRIVACY).exists()]
    return finished, [run for run in distinct if run not in finished]


def model_name(model: ModelConfig) -> str:
    """Return the name of the base model; for a folder, only its last part."""
    if model.path and not is_base_model(model.path):
        return Path(model.path).name
    return model.name


def model_title(config: TrainConfig, privacy: RunPrivacy) -> str:
    """Return the name of the base model that the run recorded, which may include the type."""
    return privacy.model or model_name(config.model)


def with_kind(name: str, folder: Path | None) -> str:
    """Return a model's name with the type that its config.json states, such as ``mine (bert)``.

    Args:
        name: Name of the model.
        folder: Folder with the model's config.json; None adds no type.
    """
    if folder is None:
        return name
    try:
        kind = json.loads((folder / "config.json").read_text("utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError):  # Loading the model reports the error.
        kind = None
    return f"{name} ({kind})" if isinstance(kind, str) else name


def data_name(task: Task) -> str:
    """Return the title of the data and the source of their rows: ``E2E (bundled sample)``."""
    source = "local" if task.data_dir is not None else task.source
    descriptions = {
        "local": "local files",
        "embedded": "bundled sample",
        "memory": "rows given by a program",
        "hub": f"{task.hub_name} on the hub",
        "url": "the addresses of task.urls",
    }
    title = data_title(task.name)
    return f"{title} ({descriptions.get(source, source)})" if source else title
