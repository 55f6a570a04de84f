"""What a run spent: read from its ledger, whose first line is the plan, and from nothing else.

privacy.json, config.yaml and reports are what a run wrote for its readers. Whoever owns the folder
can edit them; what they say and the ledger does not is named (``stated``) and not answered for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpft.errors import InputError, StateError
from dpft.files import read_yaml
from dpft.privacy.completeness import check_lodged, knows_the_end, read_run_ledger
from dpft.privacy.ledger import LedgerRecord
from dpft.privacy.plan import Plan, PrivacyPlan
from dpft.privacy.spending import Noise, steps_taken
from dpft.released import check_released
from dpft.reports.run.run_record import read_privacy
from dpft.run_folder import CONFIGURATION, HYDRA, LEDGER, MODEL, PRIVACY, PRIVATE, TUNING
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
        return sum(self.taken.values())

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
    ledger = _ledger_beside_its_file(path)
    if ledger is None:
        raise InputError(_why_no_ledger(path))
    plan = ledger.plan
    if plan is None:
        if ledger.counted_steps or (ledger.torn_at == 0 and not knows_the_end(path)):
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
    if ledger.closed and ledger.counted_steps < plan.steps:
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
        differences=() if plan.is_trial else tuple(differences(path, ledger)),
    )


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
    ledger = _ledger_beside_its_file(folder)
    if ledger is not None:
        check_stated(folder, ledger)
    elif (folder / PRIVACY).exists() and "ledger" in (known := read_privacy(folder / PRIVACY)):
        check_lodged(folder / LEDGER, None, known["ledger"], by=str(folder / PRIVACY))
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


def _ledger_beside_its_file(folder: Path) -> LedgerRecord | None:
    """Returns the ledger, unless privacy.json shows that lines were cut from its end.

    Raises:
        StateError: Lines are missing of those that privacy.json names.
    """
    ledger = read_run_ledger(folder)
    path = folder / PRIVACY
    if ledger is None or not path.exists():
        return ledger
    known = read_privacy(path).get("ledger")
    if isinstance(known, Mapping) and int(known["lines"]) > ledger.lines:
        check_lodged(folder / LEDGER, ledger, known, by=str(path))
    return ledger


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
    path = folder / CONFIGURATION
    config = read_yaml(path) if path.is_file() else None
    privacy = config.get("privacy") if isinstance(config, dict) else None
    return isinstance(privacy, dict) and privacy.get("name") == "none"


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
    unused = {str(Path(name)) for name in leave_out}
    for name in given:
        below = _runs_below(Path(name))
        if not below:
            raise InputError(_why_no_ledger(Path(name)) if _is_open(Path(name)) else _nothing(name))
        for run in below:
            word = str(run)
            if word in unused or str(run.resolve()) in {str(Path(x).resolve()) for x in leave_out}:
                unused = {x for x in unused if Path(x).resolve() != run.resolve()}
                notes.append(f"{word}: left out by leave_out")
            elif (run / LEDGER).exists() or knows_the_end(run) or (run / PRIVACY).exists():
                found.append(word)
            elif _is_open(run):
                raise InputError(
                    f"{_why_no_ledger(run)[:-1]}; leave it out by leave_out=[{word}] if it was"
                    " trained on other data."
                )
            else:
                notes.append(f"{word}: no noisy step was taken in it")
    if unused:
        raise InputError(
            f"leave_out must name runs below {', '.join(given)}, got {', '.join(sorted(unused))};"
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


def _runs_below(folder: Path) -> list[Path]:
    """Returns a folder itself where it is a run's, else all runs below it, by name."""
    if any((folder / name).is_file() for name in (LEDGER, CONFIGURATION)):
        return [folder]
    paths = {path.parent for name in (LEDGER, CONFIGURATION) for path in folder.rglob(name)}
    runs = (path for path in paths if not {PRIVATE, HYDRA} & {*path.relative_to(folder).parts})
    return sorted(runs, key=_by_numbers)


def _by_numbers(run: Path) -> list[tuple[int, str]]:
    """Returns what orders the runs of a sweep: 2 comes before 10."""
    return [(int(part) if part.isdecimal() else -1, part) for part in run.parts]


def _nothing(name: str) -> str:
    lacks = f"has no {LEDGER} in it or below" if Path(name).is_dir() else "does not exist"
    return (
        f"runs must be folders of runs, or of many of them, got {name!r}, which {lacks}; give what"
        " `dpft train` named, such as outputs/DATE/TIME, or outputs."
    )
