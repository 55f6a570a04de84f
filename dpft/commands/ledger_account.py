"""Privacy that a run has spent according to its ledger, and a search for ledgers in folders.

The first line of a ledger is the plan; the other lines record the noisy steps of the run. All other
files of the folder are reports about the run. No command computes the privacy cost from them.

Importing this module does not import torch, so that a command can reject its arguments at once.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpft.config.keys import in_shell
from dpft.config.load import load_saved, read_saved
from dpft.config.schema import TrainConfig
from dpft.errors import Fault, InputError, StateError
from dpft.model_digest import check_released
from dpft.privacy.journal import knows_the_end, read_run_ledger
from dpft.privacy.ledger import LedgerRecord, Noise, noise_of, steps_taken, sum_steps
from dpft.privacy.plan import (
    Plan,
    PrivacyPlan,
    SpentBefore,
)
from dpft.run_folder import (
    CONFIGURATION,
    HYDRA,
    JOURNAL,
    LEDGER,
    MODEL,
    PRIVACY,
    PRIVATE,
    TRAINING,
    TUNING,
    refuse_links,
    what_lacks,
)

CLOSING_LINE = "closing line"
"""Evidence that a ledger is complete if ``private/`` is missing: the closing line of a finished
run."""


@dataclass(frozen=True, kw_only=True)
class SpentRun:
    """The noisy steps of a run, with all facts on which their epsilon depends."""

    folder: str
    ledger: LedgerRecord
    plan: Plan
    taken: Mapping[Noise, int]
    """Number of steps taken at each noise level."""
    end: str | None
    """Evidence that no line is missing at the end of the ledger; None if there is no evidence."""

    @property
    def steps(self) -> int:
        """Number of noisy steps to account for."""
        return self.ledger.counted_steps

    @property
    def whole(self) -> Mapping[Noise, int]:
        """The steps taken, plus the histogram's step if the run's epsilon covers the histogram."""
        counts = self.plan.counts
        before = {} if counts is None else histogram_steps(counts)
        return sum_steps(self.taken, before)


def histogram_steps(before: SpentBefore) -> Mapping[Noise, int]:
    """Return the single noisy step of a histogram that a plan records."""
    return {noise_of(before.mechanism): 1}


def read_spent_of_synthesis(folder: str) -> SpentRun:
    """Return the privacy that a synthesis has spent, according to the ledger of its training.

    While that ledger is empty, use the ledger of the histogram instead, like ``read_spent``.

    Raises:
        InputError: As in ``read_spent``.
        StateError: As in ``read_spent``.
    """
    path = Path(folder)
    training = path / TRAINING
    ledger = read_run_ledger(training)
    if ledger is None or (ledger.plan is None and not ledger.counted_steps):
        return read_spent(folder)
    return read_spent(str(training))


def read_spent(folder: str, *, trial: bool = False) -> SpentRun:
    """Return the privacy that a run has spent. The run may be unfinished.

    Args:
        folder: Folder of the run, in which only the ledger is required.
        trial: Whether the run may be a trial of a search. No epsilon follows from the steps of a
            single trial.

    Raises:
        InputError: The folder contains no private run, belongs to a search, or has a ledger of an
            earlier version.
        StateError: The ledger or the step records in ``private/`` are damaged, or the two disagree.
    """
    path = Path(folder)
    ledger = read_run_ledger(path)
    if ledger is None:
        raise InputError(_why_no_ledger(path))
    plan = ledger.plan
    if plan is None:
        if ledger.counted_steps or not knows_the_end(path):
            raise StateError(
                f"{path / LEDGER}, line 1: the line is truncated or missing, and steps may have"
                " followed it. Restore the ledger from a backup."
            )
        raise InputError(
            f"{path / LEDGER} has no complete line, because the run was interrupted before it drew"
            " a record. The run spent nothing.",
            key=str(path / LEDGER),
        )
    if not trial and (plan.is_trial or (path / TUNING).exists()):
        raise InputError(
            f"{folder} belongs to a search by dpft tune. Its ledger covers only one run of the"
            f" search; the epsilon of all runs is in the search's {PRIVACY}.",
            key="run",
            value=folder,
        )
    planned = None
    if isinstance(plan, PrivacyPlan):
        planned = Noise(noise_multiplier=plan.noise_multiplier, sample_rate=plan.sample_rate)
    end = CLOSING_LINE if ledger.closed else None
    return SpentRun(
        folder=folder,
        ledger=ledger,
        plan=plan,
        taken=steps_taken(ledger, path / LEDGER, planned=planned),
        end="private/" if knows_the_end(path) else end,
    )


def check_model(folder: Path, ledger: LedgerRecord | None) -> None:
    """Reject a run's model if it differs from the released model that the run's ledger records.

    A run without privacy has no ledger, so there is nothing to compare.
    """
    if ledger is not None and ledger.closed:
        check_released(folder / MODEL, ledger.released, ledger=folder / LEDGER)


def _why_no_ledger(folder: Path) -> Fault:
    """Return the reason why a folder without a ledger is rejected."""
    if folder.is_dir() and _is_open(folder):
        return Fault(
            f"run must be a private run, but {str(folder)!r} was trained with privacy=none. No"
            " epsilon bounds it, neither by itself nor with other runs.",
            key="run",
            value=str(folder),
        )
    lacks = what_lacks(folder, f"{LEDGER}, because it took no noisy step")
    return Fault(
        f"run must be the folder of a dpft run, got {str(folder)!r}, which {lacks}.",
        key="run",
        value=str(folder),
        hint="run=outputs/DATE/TIME",
    )


def _is_open(folder: Path) -> bool:
    """Return whether a folder belongs to a run with ``privacy=none``."""
    asked = read_saved(folder / CONFIGURATION).get("privacy")
    return isinstance(asked, dict) and asked.get("name") == "none"


@dataclass(frozen=True, kw_only=True)
class FoundRuns:
    """The ledgers found below some folders."""

    folders: tuple[str, ...]
    """Folders of the runs whose steps count."""
    left_out: tuple[str, ...] = ()
    """One sentence for each skipped folder, with the reason."""


def find_ledgers(
    given: Sequence[str], *, leave_out: Sequence[str] = (), data_id: str | None = None
) -> FoundRuns:
    """Return every run with a ledger in the given folders or at any depth below them.

    Args:
        given: Folders of single runs, or folders that contain runs.
        leave_out: Folders to skip at the user's request.
        data_id: Public name of the data. Runs whose plan has another ``privacy.data_id`` are
            skipped.

    Raises:
        InputError: A folder contains no run, a folder is named twice, or a folder in ``leave_out``
            is not among the runs. A run without privacy is rejected too, because no total covers
            it.
    """
    folders: list[str] = []
    notes: list[str] = []
    to_leave = {Path(name).resolve(): name for name in leave_out}
    unused = dict(to_leave)
    for name in given:
        below, links = _runs_below(Path(name))
        notes += links
        if not below:
            lacks = what_lacks(Path(name), f"{LEDGER} in it or below")
            raise InputError(
                f"runs must be folders that contain runs, got {name!r}, which {lacks}.",
                key="runs",
                value=name,
                hint="runs=outputs/DATE/TIME",
            )
        for run in below:
            if run.resolve() in to_leave:
                unused.pop(run.resolve(), None)
                notes.append(f"{run}: skipped by leave_out")
            elif _is_open(run) and not (run / LEDGER).exists():
                raise InputError(
                    f"runs must be private, but {str(run)!r} was trained with privacy=none, so no"
                    " epsilon bounds it with the others. Remove it if it was trained on other"
                    " data.",
                    key="runs",
                    value=str(run),
                    hint=shlex.quote(f"leave_out=[{run}]"),
                )
            elif (run / LEDGER).exists() or knows_the_end(run) or (run / PRIVACY).exists():
                folders.append(str(run))
            else:
                notes.append(f"{run}: skipped, because it took no noisy step")
    if unused:
        raise InputError(
            f"leave_out must name runs below {', '.join(given)}, got"
            f" {', '.join(unused.values())}. Remove these from leave_out.",
            key="leave_out",
            value=tuple(unused.values()),
        )
    if len({Path(folder).resolve() for folder in folders}) < len(folders):
        raise InputError(
            f"runs must name different folders, got one twice in {', '.join(folders)}.",
            key="runs",
            value=tuple(folders),
        )
    if data_id is not None:
        for folder in list(folders):
            plan = read_spent(folder).plan
            if plan.data_id not in (None, data_id):
                folders.remove(folder)
                notes.append(f"{folder}: skipped, because privacy.data_id={plan.data_id}")
    return FoundRuns(folders=tuple(folders), left_out=tuple(notes))


def _runs_below(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the sorted runs in and below a folder, and notes on links that are not followed.

    Inside the folder of a run, only another ledger marks another run. Ledgers in its ``private/``
    belong to trials of a search, whose bound is recorded with the search.
    """
    runs: list[Path] = []
    links: list[str] = []
    for place, names, files in os.walk(folder):
        path = Path(place)
        above = [run for run in runs if path != run and path.is_relative_to(run)]
        has_steps = LEDGER in files or (path / JOURNAL).is_file()
        if has_steps or (CONFIGURATION in files and not above and path.name != HYDRA):
            runs.append(path)
        if path in runs:
            names[:] = [name for name in names if name != PRIVATE]
        links += [
            f"{path / name}: skipped, because it is a symbolic link; name its target instead"
            for name in names
            if (path / name).is_symlink()
        ]
    return sorted(runs, key=_by_numbers), links


def _by_numbers(run: Path) -> list[tuple[int, str]]:
    """Return the sort key for the runs of a sweep: 2 comes before 10."""
    return [(int(part) if part.isdecimal() else -1, part) for part in run.parts]


def saved_run(folder: str) -> TrainConfig:
    """Return the configuration of a run whose training has ended.

    Raises:
        InputError: The folder does not exist, contains a symbolic link, or belongs to a run whose
            training has not ended.
        StateError: The ledger of the run is damaged or missing.
    """
    refuse_links(Path(folder))
    path = Path(folder) / CONFIGURATION
    if not path.is_file():
        raise InputError(
            f"run must be the folder of a dpft run, got {folder!r}, which"
            f" {what_lacks(path.parent, CONFIGURATION)}.",
            key="run",
            value=folder,
            hint="run=outputs/DATE/TIME",
        )
    config: TrainConfig = load_saved(path, TrainConfig)
    if not _has_ended(Path(folder), config):
        raise InputError(
            f"run must be the folder of a finished run, but the training of {folder!r} has not"
            " ended. Wait for it, or resume it.",
            key="run",
            value=folder,
            hint=f"dpft train {in_shell('resume', folder)}",
        )
    return config


def _has_ended(folder: Path, config: TrainConfig) -> bool:
    if not (folder / MODEL).is_dir():
        return False
    ledger = read_run_ledger(folder)
    if ledger is not None:
        check_model(folder, ledger)
        return ledger.closed
    if config.privacy.guarantee is not None:
        raise StateError(
            f"{folder / LEDGER} is missing, so the privacy cost of the run is unknown. Restore it"
            " from a backup."
        )
    return True
