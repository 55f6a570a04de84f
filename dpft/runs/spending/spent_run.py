"""What a run spent: read from its ledger, whose first line is the plan, and from nothing else.

privacy.json, config.yaml and reports are what a run wrote for its readers. Whoever owns the folder
can edit them; what they say and the ledger does not is named (``stated``) and not answered for.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpft.errors import DpftError, InputError, StateError
from dpft.privacy.completeness import check_lodged, knows_the_end, read_run_ledger
from dpft.privacy.ledger import LedgerRecord
from dpft.privacy.plan import Plan, PrivacyPlan
from dpft.privacy.spending import Noise, steps_taken
from dpft.records.configuration import read_saved
from dpft.records.privacy_file import has_noise, read_privacy
from dpft.released import check_released
from dpft.run_folder import (
    CONFIGURATION,
    HYDRA,
    JOURNAL,
    LEDGER,
    MODEL,
    PRIVACY,
    PRIVATE,
    TUNING,
)
from dpft.runs.spending.stated import check_stated, differences

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
    differences: tuple[str, ...] = ()
    """What privacy.json and config.yaml say otherwise than the ledger, a sentence each."""

    @property
    def steps(self) -> int:
        """Noisy steps to account for."""
        return self.ledger.counted_steps

    @property
    def tokenizer_taken(self) -> Mapping[Noise, int]:
        """The noisy step of the tokenizer that the plan adds to; none where it adds to none."""
        before = self.plan.tokenizer
        if before is None:
            return {}
        record = LedgerRecord(
            steps=1, mechanisms=(before.mechanism,), closed=True, lines=before.lines,
            head=before.head,
        )  # fmt: skip
        return steps_taken(record, Path(self.folder) / LEDGER)


def read_spent(folder: str, *, trial: bool = False) -> SpentRun:
    """Returns what a run has spent, finished or not.

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
    _check_not_cut(path, ledger)
    plan = ledger.plan
    if plan is None:
        if ledger.counted_steps or not knows_the_end(path):
            raise StateError(
                f"{path / LEDGER}, line 1: the first line is torn or gone, and steps may have"
                " followed it. Put the ledger back as it was."
            )
        raise InputError(
            f"{path / LEDGER} must hold the run's plan, got no whole line: the run broke off before"
            " it drew a record, and spent nothing."
        )
    if not trial and (plan.is_trial or (path / TUNING).exists()):
        raise InputError(
            f"{folder} is of dpft tune: its ledger holds one of a secret number of runs, so no"
            f" epsilon follows from it; the whole search's stands in {PRIVACY}."
        )
    if ledger.closed and not plan.may_end_after(ledger.streams):
        raise StateError(
            f"{path / LEDGER} is closed and must hold the {plan.steps} planned steps at"
            f" least, got {ledger.counted_steps}: lines were cut, and a closing line was written"
            " after them. Put it back as it was."
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
        differences=() if plan.is_trial else _differences(path, ledger),
    )


def _differences(folder: Path, ledger: LedgerRecord) -> tuple[str, ...]:
    """Returns what other files say otherwise, or that one of them cannot be read."""
    try:
        return tuple(differences(folder, ledger))
    except DpftError as error:  # the ledger is all that the answer needs
        return (str(error).rstrip("."),)


def read_ended_ledger(folder: Path) -> LedgerRecord | None:
    """Returns a run's ledger, once ``private/``, privacy.json and config.yaml agree with it.

    What prints statements of privacy.json, or makes something of a run's model, reads it by this.

    Returns:
        What it says; None where there is none and nothing knows of one.

    Raises:
        InputError: A file is of another schema version.
        StateError: The ledger is damaged, or was cut, added to or replaced; or another file
            contradicts it.
    """
    ledger = read_run_ledger(folder)
    if ledger is not None:
        _check_not_cut(folder, ledger)
        check_stated(folder, ledger)
    elif (folder / PRIVACY).exists() and has_noise(known := read_privacy(folder / PRIVACY)):
        check_lodged(folder / LEDGER, None, vars(known.ledger), by=str(folder / PRIVACY))
    return ledger


def check_model(folder: Path, ledger: LedgerRecord | None) -> None:
    """Refuses a model in a run's folder that is not the one which the run released.

    Args:
        folder: The run's.
        ledger: What its ledger says; None, of a run without privacy, has nothing to compare with.

    Raises:
        StateError: It is another one.
    """
    if ledger is not None and ledger.closed:
        check_released(folder / MODEL, ledger.released, ledger=folder / LEDGER)


def _check_not_cut(folder: Path, ledger: LedgerRecord) -> None:
    """Refuses a ledger that has not ended and lacks lines which privacy.json names.

    Raises:
        StateError: It does.
    """
    path = folder / PRIVACY
    try:
        known = read_privacy(path) if path.exists() else None
    except DpftError:
        return
    if known is None or not has_noise(known) or ledger.closed:
        return
    if known.ledger.lines > ledger.lines:
        check_lodged(folder / LEDGER, ledger, vars(known.ledger), by=str(path))


def _why_no_ledger(folder: Path) -> str:
    """Returns the sentence that refuses a folder without a ledger."""
    wanted = f"run must be the folder of a dpft run, got {str(folder)!r}, which"
    hint = "give the folder that `dpft train` named, such as outputs/DATE/TIME."
    if not folder.is_dir():
        return f"{wanted} does not exist; {hint}"
    if _is_open(folder):
        return (
            f"run must be a private one, got {str(folder)!r}, which was trained with privacy=none:"
            " it protects nobody, alone or with others, and no epsilon bounds it."
        )
    return f"{wanted} has no {LEDGER}: no noisy step was taken in it; {hint}"


def _is_open(folder: Path) -> bool:
    """Returns whether a folder is of a run with ``privacy=none``."""
    config = read_saved(folder / CONFIGURATION)
    return config is not None and config.is_open


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
    """Returns every run with a ledger in some folders or below them, however deep.

    Args:
        given: Folders of runs, or of many.
        leave_out: Folders to leave out, on the user's word.
        data_id: Leaves out runs whose plan names other data by ``privacy.data_id``.

    Raises:
        InputError: A folder holds no run; one without privacy is among them, which no total
            covers; one is named twice; or what is to be left out is not among them.
    """
    found: list[str] = []
    notes: list[str] = []
    to_leave = {Path(name).resolve(): name for name in leave_out}
    unused = dict(to_leave)
    for name in given:
        below, links = _runs_below(Path(name))
        notes += links
        if not below:
            raise InputError(_nothing(name))
        for run in below:
            if run.resolve() in to_leave:
                unused.pop(run.resolve(), None)
                notes.append(f"{run}: left out by leave_out")
            elif _is_open(run) and not (run / LEDGER).exists():
                raise InputError(
                    f"{_why_no_ledger(run)[:-1]}; leave it out by leave_out=[{run}] if it was"
                    " trained on other data."
                )
            elif (run / LEDGER).exists() or knows_the_end(run) or (run / PRIVACY).exists():
                found.append(str(run))
            else:
                notes.append(f"{run}: no noisy step was taken in it")
    if unused:
        raise InputError(
            f"leave_out must name runs below {', '.join(given)}, got {', '.join(unused.values())};"
            " drop it."
        )
    if len({Path(folder).resolve() for folder in found}) < len(found):
        raise InputError(f"runs must name different folders, got one twice in {', '.join(found)}.")
    if data_id is not None:
        for folder in list(found):
            plan = read_spent(folder).plan
            if plan.data_id not in (None, data_id):
                found.remove(folder)
                notes.append(f"{folder}: of other data, privacy.data_id={plan.data_id}")
    return FoundRuns(folders=tuple(found), left_out=tuple(notes))


def _runs_below(folder: Path) -> tuple[list[Path], list[str]]:
    """Returns the run in a folder and all below it, by name, and the links that are not followed.

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
    """Returns what orders the runs of a sweep: 2 comes before 10."""
    return [(int(part) if part.isdecimal() else -1, part) for part in run.parts]


def _nothing(name: str) -> str:
    lacks = f"has no {LEDGER} in it or below" if Path(name).is_dir() else "does not exist"
    return (
        f"runs must be folders of runs, or of many of them, got {name!r}, which {lacks}; give what"
        " `dpft train` named, such as outputs/DATE/TIME, or outputs."
    )
