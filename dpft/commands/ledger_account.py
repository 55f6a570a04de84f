"""Read what a run spent from the ledger in its folder, and find ledgers below a folder.

The ledger, whose first line is the plan, records what a run spent. All other files of the folder
are reports about the run: no command decides by them what was spent.

Importing it imports no torch, so that a command is refused at once.
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
"""What shows the end of a finished run's ledger where private/ is not there."""


@dataclass(frozen=True, kw_only=True)
class SpentRun:
    """A run's noisy steps and what their epsilon means."""

    folder: str
    ledger: LedgerRecord
    plan: Plan
    taken: Mapping[Noise, int]
    """How many steps were taken under each noise."""
    end: str | None
    """What shows that no line is missing at the ledger's end; None where nothing does."""

    @property
    def steps(self) -> int:
        """Noisy steps to account for."""
        return self.ledger.counted_steps

    @property
    def whole(self) -> Mapping[Noise, int]:
        """The steps taken, and that of the histogram whose epsilon is the run's, too."""
        counts = self.plan.counts
        before = {} if counts is None else histogram_steps(counts)
        return sum_steps(self.taken, before)


def histogram_steps(before: SpentBefore) -> Mapping[Noise, int]:
    """Return the one noisy step of a histogram that a plan names."""
    return {noise_of(before.mechanism): 1}


def read_spent_of_synthesis(folder: str) -> SpentRun:
    """Return what a synthesis has spent, as its training's ledger has it; else as ``read_spent``.

    Until that ledger has its first line, it is what the histogram's own has.

    Raises:
        InputError: As ``read_spent``.
        StateError: As ``read_spent``.
    """
    path = Path(folder)
    training = path / TRAINING
    ledger = read_run_ledger(training)
    if ledger is None or (ledger.plan is None and not ledger.counted_steps):
        return read_spent(folder)
    return read_spent(str(training))


def read_spent(folder: str, *, trial: bool = False) -> SpentRun:
    """Return what a run has spent, finished or not.

    Args:
        folder: The run's; of its files the ledger alone is needed.
        trial: Whether it may be a search's, of whose steps alone no epsilon follows.

    Raises:
        InputError: The folder holds no private run, or a search's; or an earlier version's ledger.
        StateError: The ledger, or what ``private/`` knows of the steps, is damaged, or they do not
            agree.
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
            f"{folder} belongs to a search by dpft tune, so its ledger contains one of a secret"
            f" number of runs, and no epsilon follows from it. {PRIVACY} of the search contains"
            " the epsilon of all its runs.",
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
    """Reject a model in a run's folder that is not the one which its ledger says was released.

    A run without privacy has no ledger, and nothing to compare with.
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
    """Return whether a folder is of a run with ``privacy=none``."""
    asked = read_saved(folder / CONFIGURATION).get("privacy")
    return isinstance(asked, dict) and asked.get("name") == "none"


@dataclass(frozen=True, kw_only=True)
class FoundRuns:
    """The ledgers below some folders."""

    folders: tuple[str, ...]
    """Of runs whose steps count."""
    left_out: tuple[str, ...] = ()
    """A sentence for each folder that does not count, and why."""


def find_ledgers(
    given: Sequence[str], *, leave_out: Sequence[str] = (), data_id: str | None = None
) -> FoundRuns:
    """Return every run with a ledger in some folders or below them, however deep.

    Args:
        given: Folders of runs, or of many.
        leave_out: Folders to leave out, on the user's word.
        data_id: Leaves out runs whose plan names other data by ``privacy.data_id``.

    Raises:
        InputError: A folder holds no run; one without privacy is among them, which no total
            covers; one is named twice; or what is to be left out is not among them.
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
                notes.append(f"{run}: left out by leave_out")
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
                notes.append(f"{run}: no noisy step was taken in it")
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
                notes.append(f"{folder}: of other data, privacy.data_id={plan.data_id}")
    return FoundRuns(folders=tuple(folders), left_out=tuple(notes))


def _runs_below(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the run in a folder and all below it, by name, and the links that are not followed.

    In a run's own folder only a further ledger is another run; those in its ``private/`` are of a
    search's trials, whose bound stands with the search.
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
            f"{path / name}: a symbolic link, which is not followed; name its folder"
            for name in names
            if (path / name).is_symlink()
        ]
    return sorted(runs, key=_by_numbers), links


def _by_numbers(run: Path) -> list[tuple[int, str]]:
    """Return what orders the runs of a sweep: 2 comes before 10."""
    return [(int(part) if part.isdecimal() else -1, part) for part in run.parts]


def saved_run(folder: str) -> TrainConfig:
    """Return the configuration of a run whose training has ended.

    Raises:
        InputError: There is no such folder, it has a symbolic link in it, or its training has not
            ended.
        StateError: Its ledger is damaged or gone.
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
