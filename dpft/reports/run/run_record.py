"""What the public files of a run's folder say, for reports of one run and of many."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpft.errors import InputError
from dpft.files import read_yaml
from dpft.records.configuration import RunConfiguration, parse_configuration
from dpft.records.form import read_record
from dpft.records.privacy_file import RunPrivacy, run_privacy
from dpft.records.promises import PrivateRun
from dpft.records.scores import ScoreEntry, ScoresByStep
from dpft.reports.run.metrics_files import read_evaluations, read_own_evaluations, shown
from dpft.run_folder import (
    AUDIT,
    CONFIGURATION,
    OVERRIDES,
    PRIVACY,
    SCORES_BY_STEP,
    WRONG_IMAGES,
    runs_in,
)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run's public files, read."""

    folder: Path
    config: RunConfiguration
    """What config.yaml says, as far as reports name it."""
    values: Mapping[str, Any]
    """All of config.yaml."""
    privacy: RunPrivacy
    """What privacy.json says."""
    evaluations: list[ScoreEntry]
    """Entries of metrics.json, which of private splits say no more than may be shown; none where
    nothing was scored."""
    overrides: tuple[str, ...] | None
    """What the user wrote after ``dpft train``; None where that is not recorded."""
    by_step: ScoresByStep | None = None
    """Scores while it trained; None of a run that has none."""
    audit_figures: tuple[str, ...] = ()
    """Figures that audits left in the public part of its folder, as SVG."""
    pictures: Mapping[str, bytes] = field(default_factory=dict)
    """Images that were wrongly classed, by the name of their file."""

    @property
    def is_of_search(self) -> bool:
        """Whether it is the best of a search."""
        return isinstance(self.privacy, PrivateRun) and self.privacy.selection is not None

    def after(self) -> list[ScoreEntry]:
        """Returns the scores of the trained model, an entry for each task and split."""
        return self._of_stage("after")

    def before(self) -> list[ScoreEntry]:
        """Returns the scores before training, an entry for each task and split."""
        return self._of_stage("before")

    def _of_stage(self, stage: str) -> list[ScoreEntry]:
        return [entry for entry in self.evaluations if entry.stage == stage]


def read_run(folder: Path) -> RunRecord:
    """Returns what a run's public files say.

    Raises:
        InputError: One of them is missing or of another schema version.
        StateError: A JSON file is damaged.
    """
    try:
        privacy = run_privacy(folder / PRIVACY)
        values = dict(read_yaml(folder / CONFIGURATION))
        by_step, figures = folder / SCORES_BY_STEP, sorted((folder / AUDIT).glob("*.svg"))
        stem, _, suffix = WRONG_IMAGES.partition(".")
        return RunRecord(
            folder=folder,
            config=parse_configuration(values, RunConfiguration),
            values=values,
            privacy=privacy,
            evaluations=read_evaluations(folder),
            overrides=read_overrides(folder),
            by_step=read_record(by_step, ScoresByStep) if by_step.exists() else None,
            audit_figures=tuple(path.read_text(encoding="utf-8") for path in figures),
            pictures={path.name: path.read_bytes() for path in folder.glob(f"{stem}*.{suffix}")},
        )
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"cannot read the run in {folder}: {reason}.") from error


def with_own_scores(record: RunRecord, *, rounded: bool = False) -> RunRecord:
    """Returns a run's record with the scores of private splits that its owner has in private/.

    Args:
        record: As ``read_run`` gives it.
        rounded: Whether they are rounded to the digits that may be shown.

    Raises:
        InputError: A file of scores is of another schema version.
        StateError: One is damaged.
    """
    own = read_own_evaluations(record.folder)
    return replace(
        record, evaluations=[shown(one, rounded=True) for one in own] if rounded else own
    )


def read_overrides(folder: Path) -> tuple[str, ...] | None:
    """Returns what the user wrote after ``dpft train``; None where that is not recorded."""
    path = folder / OVERRIDES
    if not path.exists():
        return None
    return tuple(map(str, read_yaml(path) or ()))


def find_runs(named: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Returns the folders of finished runs, and those of runs that have no report yet.

    Args:
        named: Folders of runs, or of sweeps, whose runs are taken in the order of their numbers.

    Raises:
        InputError: One of them is neither.
    """
    found = [run for folder in named for run in runs_in(folder)]
    distinct = list({run.resolve(): run for run in found}.values())
    finished = [run for run in distinct if (run / PRIVACY).exists()]
    return finished, [run for run in distinct if run not in finished]
