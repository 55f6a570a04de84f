"""A run read from its folder, and held against its ledger, by every command that names one.

What a run spent stands in its ledger, whose first line is the plan, and nowhere else. privacy.json,
config.yaml and reports are what a run wrote for its readers; nothing signs them, and whoever owns
the folder can edit them. A key there that says otherwise than the ledger is named, with the file
that has it; what depends on the file is refused, and ``dpft account run=`` answers from the ledger.
An epsilon that no accountant's answer of this version can confirm at a glance must at least not be
below what a simple test of the ledger's steps shows (``epsilon_lower_bound``).

Importing it imports no torch, so that a command is refused at once.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.config.keys import in_shell
from dpft.config.load import load_saved
from dpft.config.schema import POLYMORPHIC, TrainConfig
from dpft.data.canaries import CanaryConfig
from dpft.errors import DpftError, InputError, StateError
from dpft.files import (
    CONFIGURATION,
    HYDRA,
    JOURNAL,
    LEDGER,
    MODEL,
    PRIVACY,
    PRIVATE,
    SYNTHESIS,
    TRAINING,
    TRIALS,
    TUNING,
    refuse_links,
    what_lacks,
)
from dpft.methods.base import METHODS, Method
from dpft.privacy.accounting.accountants import LEADING_ACCOUNTANTS
from dpft.privacy.accounting.interpretation import epsilon_lower_bound
from dpft.privacy.ledger import LedgerRecord, Noise, added_up, steps_taken
from dpft.privacy.mechanisms.histogram import histogram_of
from dpft.privacy.plan import (
    CHUNK,
    EXAMPLE,
    GIVEN,
    HistogramPlan,
    Plan,
    PrivacyPlan,
    SpentBefore,
    write_plan,
)
from dpft.privacy.replay_log import Anchor, check_anchor, knows_the_end, read_run_ledger
from dpft.records.configuration import AuditSection, PrivacySection, read_saved
from dpft.records.costs import Interval, Search
from dpft.records.form import as_json, read_record
from dpft.records.promises import (
    PrivateRun,
    PrivateVocabulary,
    RunPrivacy,
    Vocabulary,
    guarantee,
    has_noise,
    read_privacy,
)
from dpft.released import check_released
from dpft.reports.report import write_report
from dpft.reports.run_record import RunRecord, find_runs, read_run

SAME = 1e-9
"""Relative difference that rounding explains."""
PLANNED = (
    *("noise_multiplier", "sample_rate", "steps", "delta", "num_examples", "expected_batch_size"),
    *("clipping", "unit", "unit_definition", "neighboring_relation", "sampler", "calibration"),
    *("phases", "delta_source", "mechanism"),
)
"""Keys of privacy.json that the plan has under the same name."""
BOUNDS = ("rdp", "pld", "prv")
"""Accountants whose answer is an upper bound, and no estimate."""
Stated = PrivateRun | PrivateVocabulary
"""A privacy.json with an epsilon."""
Fact = tuple[str, Any, Any]
"""A key, what the file says, and what the ledger does."""


def _stated(folder: Path) -> RunPrivacy | Vocabulary | None:
    path = folder / PRIVACY
    return read_privacy(path) if path.exists() else None


def _differences(
    folder: Path, privacy: RunPrivacy | Vocabulary | None, ledger: LedgerRecord
) -> list[str]:
    """Returns what files say otherwise than a run's ledger, a sentence each, without its full stop.

    ``privacy`` is the folder's privacy.json; None: there is none.
    """
    config, plan = read_saved(folder / CONFIGURATION), ledger.plan
    trials = folder / TRIALS
    search = None
    if privacy is not None and has_noise(privacy) and trials.exists():
        search = read_record(trials, Search)
    if plan is None:
        return []
    found: list[str] = []
    path = folder / PRIVACY
    if privacy is not None and not has_noise(privacy):
        found.append(
            f"{path} must state the epsilon of the {ledger.counted_steps} noisy steps of"
            f" {folder / LEDGER}, got none: it was edited or is another run's"
        )
    elif privacy is not None:
        facts = [*_of_ledger(privacy, ledger), *_of_plan(privacy, ledger)]
        found += _words(path, facts)
        if all(_same(stated, known) for _, stated, known in facts):
            found += _words(path, _of_accountants(search, privacy, ledger))
            found += _impossible(folder, privacy, ledger)
    if config is not None and config.privacy is not None:
        asked = _of_configuration(config.privacy, plan, config.audit)
        found += _words(folder / CONFIGURATION, asked, section="privacy.")
    if config is not None and config.method is not None and isinstance(plan, PrivacyPlan):
        phases = tuple(phase.method for phase in plan.phases)
        if not _may_have_phases(config.method.name, phases):
            found.append(
                f"{folder / CONFIGURATION}: method.name must be that of {', then '.join(phases)},"
                f" which trained as the ledger says, got {config.method.name!r}"
            )
    return found


def _may_have_phases(method: str, phases: tuple[str, ...]) -> bool:
    """Returns whether a run of this method has phases of such names; its last ones may be cut."""
    try:
        kind = METHODS.named(method)
    except InputError:  # another version's: it trains under its own name, as far as is known
        return phases == (method,)
    if kind.phases is Method.phases:
        return phases == (method,)
    return not kind.phase_names or phases == kind.phase_names[: len(phases)]


def _words(path: Path, facts: Any, *, section: str = "") -> Iterator[str]:
    for name, stated, known in facts:
        if not _same(stated, known):
            yield (
                f"{path}: {section}{name} must be {_shown(known)}, as the ledger says, got"
                f" {_shown(stated)}"
            )


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)


def _of_ledger(privacy: Stated, ledger: LedgerRecord) -> Iterator[Fact]:
    yield "ledger.lines", privacy.ledger.lines, ledger.lines
    yield "ledger.head", privacy.ledger.head, ledger.head
    yield "steps_taken", privacy.steps_taken, ledger.steps
    plan = ledger.plan
    assert plan is not None
    yield "private", privacy.private, not plan.reproducible
    stated = privacy.participations if isinstance(privacy, PrivateRun) else None
    if stated is not None and isinstance(plan, PrivacyPlan):
        yield "participations", stated, plan.event(ledger.streams or (1,)).steps


def _of_plan(privacy: Stated, ledger: LedgerRecord) -> Iterator[Fact]:
    plan, stated = ledger.plan, as_json(privacy)
    if isinstance(plan, HistogramPlan):
        for name, value in plan.histogram.items():
            if name != "name":
                yield name, stated.get(name), value
    assert plan is not None
    written = write_plan(plan)
    for name in PLANNED:
        if name in written and not (_is_of_search(privacy) and name == "calibration"):
            yield name, stated.get(name), written[name]
    counts = plan.counts if isinstance(plan, PrivacyPlan) else None
    histogram = privacy.histogram if isinstance(privacy, PrivateRun) else None
    head = None if histogram is None else histogram.ledger.head
    yield "histogram.ledger.head", head, None if counts is None else counts.head


def _of_accountants(search: Search | None, privacy: Stated, ledger: LedgerRecord) -> Iterator[Fact]:
    """Yields what epsilon must be: calibrated, exact, or whose bound the file says it is."""
    plan, epsilon = ledger.plan, privacy.epsilon
    if isinstance(plan, HistogramPlan):
        yield "epsilon", epsilon, histogram_of(plan.histogram).epsilon
        return
    assert isinstance(plan, PrivacyPlan)
    calibration = plan.calibration
    if plan.is_trial or _is_of_search(privacy):
        # The bound that a search was bound to before its first trial, which its plans have.
        if calibration is not None:
            yield "accountant", privacy.accountant, calibration.accountant
            yield "epsilon", epsilon, calibration.epsilon
        if search is not None:
            yield "epsilon", epsilon, search.calibration.epsilon
    elif calibration is not None and plan.event(ledger.streams or (1,)) == plan.event():
        yield "accountant", privacy.accountant, calibration.accountant
        yield "epsilon", epsilon, calibration.epsilon
    else:
        name = privacy.accountant
        if name not in LEADING_ACCOUNTANTS:
            yield "accountant", name, " or ".join(LEADING_ACCOUNTANTS)
        answer = privacy.epsilons.get(name) if isinstance(privacy, PrivateRun) else None
        yield "epsilon", epsilon, answer.upper if isinstance(answer, Interval) else answer


def _is_of_search(privacy: Stated) -> bool:
    return isinstance(privacy, PrivateRun) and privacy.selection is not None


def _of_configuration(
    asked: PrivacySection, plan: PrivacyPlan | HistogramPlan, audit: AuditSection | None
) -> Iterator[Fact]:
    """Yields what config.yaml asked for, where the plan says what came of it."""
    if asked.unit is not None:
        yield "unit", asked.unit, plan.unit
    if plan.delta_source == GIVEN or asked.delta is not None:
        yield "delta", asked.delta, plan.delta
    yield "noise_seed", asked.noise_seed is not None, plan.reproducible
    if isinstance(plan, HistogramPlan) or plan.is_trial:
        return
    if asked.num_examples is not None:
        of_units = plan.unit not in (EXAMPLE, CHUNK)
        own = plan.num_examples - (0 if audit is None else _canaries(audit, units=of_units))
        yield "num_examples", asked.num_examples, own
    calibration = plan.calibration
    if calibration is not None and calibration.target is not None:
        yield "eps", asked.eps, calibration.target
    elif asked.noise_multiplier is not None:
        yield "noise_multiplier", asked.noise_multiplier, plan.noise_multiplier


def _canaries(audit: AuditSection, *, units: bool) -> int:
    """Returns how many of a plan's examples, or units, are canaries."""
    names = ("canaries", "exposure_canaries", "repetitions")
    given = {name: value for name in names if (value := getattr(audit, name)) is not None}
    return CanaryConfig(**given).added(units=units)


def _impossible(folder: Path, privacy: Stated, ledger: LedgerRecord) -> Iterator[str]:
    """Yields an epsilon that is below what the ledger's steps show, whatever goes with it."""
    path, delta = folder / PRIVACY, float(privacy.delta)
    taken = steps_taken(ledger, folder / LEDGER)
    # A histogram's is exact, and was compared.
    spent = {noise: steps for noise, steps in taken.items() if not noise.threshold_delta}
    stated: list[tuple[str, float, float, Mapping[Noise, int]]] = [
        (f"{path}: epsilon", float(privacy.epsilon), delta, spent)
    ]
    if isinstance(privacy, PrivateRun):
        for name in BOUNDS:
            answer = privacy.epsilons.get(name)
            bound = answer.upper if isinstance(answer, Interval) else answer
            if isinstance(bound, int | float):
                stated.append((f"{path}: epsilons.{name}", float(bound), delta, spent))
        if privacy.tokenizer is not None:
            stated.append((f"{path}: epsilon_with_tokenizer", *guarantee(privacy), spent))
        stated += [
            (place, bound, delta, so_far)
            for place, bound, so_far in _while_training(folder, privacy, ledger.plan)
        ]
    for place, epsilon, at, noises in stated:
        for noise, steps in noises.items():
            least = epsilon_lower_bound(
                noise_multiplier=noise.noise_multiplier,
                sample_rate=noise.sample_rate,
                steps=steps,
                delta=at,
            )
            if epsilon < least * (1 - 1e-6):
                yield (
                    f"{place} must be at least {least:.4g}, which the {steps} noisy steps of"
                    f" {folder / LEDGER} show at delta = {at:.4g}, got {epsilon:.4g}"
                )


def _while_training(
    folder: Path, privacy: PrivateRun, plan: Plan | None
) -> Iterator[tuple[str, float, Mapping[Noise, int]]]:
    """Yields what bounds some first steps: its place, the bound, and what so many steps cost."""
    if not isinstance(plan, PrivacyPlan):
        return
    curve = privacy.epsilon_curve
    found: list[tuple[str, int, float | None]] = []
    if curve is not None:
        pairs = zip(curve.steps, curve.epsilons, strict=True)
        found += [(f"{folder / PRIVACY}: epsilon_curve", *pair) for pair in pairs]
    noise = Noise(noise_multiplier=plan.noise_multiplier, sample_rate=plan.sample_rate)
    for place, steps, bound in found:
        if bound is not None and steps > 0:
            cost = plan.event((min(steps, plan.steps),)).steps
            yield f"{place} at step {steps}", float(bound), {noise: cost}


def _same(stated: Any, known: Any) -> bool:
    if isinstance(stated, bool) or isinstance(known, bool):
        return stated is known
    if isinstance(stated, int | float) and isinstance(known, int | float):
        try:
            return math.isclose(stated, known, rel_tol=SAME)
        except OverflowError:  # a whole number beyond every float
            return stated == known
    if isinstance(stated, Mapping) and isinstance(known, Mapping):
        names = stated.keys() | known
        return all(_same(stated.get(name), known.get(name)) for name in names)
    if isinstance(stated, list | tuple) and isinstance(known, list | tuple):
        pairs = len(stated) == len(known)
        return pairs and all(_same(one, two) for one, two in zip(stated, known, strict=True))
    return bool(stated == known)


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
    def whole(self) -> Mapping[Noise, int]:
        """The steps taken, and that of the histogram whose epsilon is the run's, too."""
        counts = self.plan.counts
        before = {} if counts is None else taken_before(counts, self.folder)
        return added_up(self.taken, before)


def taken_before(before: SpentBefore, folder: str | Path) -> Mapping[Noise, int]:
    """Returns the one noisy step of a histogram that the plan of a run in ``folder`` names."""
    record = LedgerRecord(
        steps=1, mechanisms=(before.mechanism,), closed=True, lines=before.lines, head=before.head
    )
    return steps_taken(record, Path(folder) / LEDGER)


def read_spent_of_synthesis(folder: str) -> SpentRun:
    """Returns what a synthesis has spent, as its training's ledger has it; else as ``read_spent``.

    Until that ledger has its first line, it is what the histogram's own has.

    Raises:
        InputError: As ``read_spent``.
        StateError: As ``read_spent``, or the histogram's ledger is not what the training's names.
    """
    path = Path(folder)
    training = path / TRAINING
    ledger = read_run_ledger(training) if (path / SYNTHESIS).exists() else None
    if ledger is None or (ledger.plan is None and not ledger.counted_steps):
        return read_spent(folder)
    run = read_spent(str(training))
    if (path / LEDGER).exists():
        check_counts(run, read_spent(folder))
    return run


def check_counts(run: SpentRun, histogram: SpentRun) -> None:
    """Refuses the ledger of a histogram that is not the one which a training's plan names.

    Raises:
        StateError: It is another, or the plan names none.
    """
    known = run.plan.counts
    heads = histogram.ledger.heads
    if known is None or heads[known.lines : known.lines + 1] != (known.head,):
        raise StateError(
            f"{Path(histogram.folder) / LEDGER} must be the ledger of the histogram that"
            f" {Path(run.folder) / LEDGER} names in its first line, got another; put both back as"
            " they were."
        )


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
    privacy: RunPrivacy | Vocabulary | None = None
    fault: tuple[str, ...] = ()
    try:
        privacy = _stated(path)
    except DpftError as error:  # the ledger is all that the answer needs
        fault = (str(error).rstrip("."),)
    _check_not_cut(path, privacy, ledger)
    try:
        said = fault or tuple(_differences(path, privacy, ledger))
    except DpftError as error:
        said = (str(error).rstrip("."),)
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
        differences=() if plan.is_trial else said,
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
    ledger = read_run_ledger(folder)
    check_beside(folder, ledger)
    return ledger


def check_beside(folder: Path, ledger: LedgerRecord | None) -> None:
    """Refuses a run's folder whose privacy.json or config.yaml contradicts the ledger there.

    The ledger is as ``read_run_ledger`` holds it against ``private/``; None: there is none.
    """
    known = _stated(folder)
    _check_not_cut(folder, known, ledger)
    if ledger is not None and (found := _differences(folder, known, ledger)):
        raise StateError(f"{'; '.join(found)}. Put it back as it was.")


def check_model(folder: Path, ledger: LedgerRecord | None) -> None:
    """Refuses a model in a run's folder that is not the one which its ledger says was released.

    A run without privacy has no ledger, and nothing to compare with.
    """
    if ledger is not None and ledger.closed:
        check_released(folder / MODEL, ledger.released, ledger=folder / LEDGER)


def _check_not_cut(
    folder: Path, known: RunPrivacy | Vocabulary | None, ledger: LedgerRecord | None
) -> None:
    """Refuses a ledger that is gone, or has not ended, where privacy.json says that it has."""
    if known is None or not has_noise(known) or (ledger is not None and ledger.closed):
        return
    named, path = known.ledger, folder / LEDGER
    check_anchor(path, ledger, Anchor(named.lines, named.head, by=str(folder / PRIVACY)))
    raise StateError(
        f"{path} must have its closing line, after which {folder / PRIVACY} is written, got none;"
        " it was cut. Put it back as it was."
    )


def _why_no_ledger(folder: Path) -> str:
    """Returns the sentence that refuses a folder without a ledger."""
    wanted = f"run must be the folder of a dpft run, got {str(folder)!r}, which"
    hint = "give the folder that `dpft train` named, such as outputs/DATE/TIME."
    if not folder.is_dir():
        return f"{wanted} {what_lacks(folder, LEDGER)}; {hint}"
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
            lacks = what_lacks(Path(name), f"{LEDGER} in it or below")
            raise InputError(
                f"runs must be folders of runs, or of many of them, got {name!r}, which {lacks};"
                " give what `dpft train` named, such as outputs/DATE/TIME, or outputs."
            )
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


def saved_run(folder: str) -> TrainConfig:
    """Returns the configuration of a run whose training has ended.

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
            f" {what_lacks(path.parent, CONFIGURATION)}; give the folder that `dpft train` named,"
            " such as outputs/DATE/TIME."
        )
    config: TrainConfig = load_saved(path, TrainConfig, polymorphic=POLYMORPHIC)
    if not _has_ended(Path(folder), config):
        raise InputError(
            f"run must be the folder of a run whose training has ended, got {folder!r}, whose "
            f"training has not; wait for it, or go on with it by dpft train"
            f" {in_shell('resume', folder)}."
        )
    return config


def _has_ended(folder: Path, config: TrainConfig) -> bool:
    if not (folder / MODEL).is_dir():
        return False
    ledger = read_ended_ledger(folder)
    if ledger is not None:
        check_model(folder, ledger)
        return ledger.closed
    if config.privacy.guarantee is not None:
        raise StateError(
            f"{folder / LEDGER} is gone, so nothing shows what the run spent; put it back as it"
            " was."
        )
    return True


def read_finished_runs(folders: Sequence[Path]) -> tuple[list[RunRecord], list[Path]]:
    """Returns the records of the finished runs in some folders, and the folders of the others.

    Raises:
        InputError: A folder holds none, or none of them has a report, or one has a symbolic link.
        StateError: A run's files are damaged.
    """
    finished, unfinished = find_runs(folders)
    if not finished:
        raise InputError(
            f"runs must name a run that has ended, got {len(unfinished)} that have not; go on with"
            " them by dpft train resume=RUN."
        )
    for folder in finished:
        refuse_links(folder)
        # A report may be handed on without its ledger; where one is, or is known of, it must fit.
        if (folder / LEDGER).exists() or knows_the_end(folder):
            read_ended_ledger(folder)
    return [read_run(folder) for folder in finished], unfinished


def rebuild_report(record: RunRecord) -> None:
    """Writes report.md, report.html and the model's card of a run anew from its public files.

    In the folder of a search every file keeps its time, which is that of the search's beginning:
    another would tell how long the search took at most.
    """
    public = [path for path in record.folder.glob("*") if path.name != PRIVATE]
    below = [path for top in public for path in top.rglob("*")]
    times = {path: path.stat().st_mtime_ns for path in (*below, *public, record.folder)}
    write_report(record.folder)
    if record.is_of_search:
        for path, time in times.items():
            os.utime(path, ns=(time, time))
