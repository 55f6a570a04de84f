"""The tuning bill: the epsilon of all the runs of a ``--multirun`` sweep together.

Each run's report has its own epsilon, and whoever picks one of them by looking at them has spent
that of all. Runs that broke off have spent, too: their steps are read from their ledgers. The
trained runs are composed as ``dpft account runs=`` does it; a search in the sweep has no mechanism
to compose, so its epsilon and delta are added (basic composition, Dwork & Roth 2014, Theorem 3.16).
"""

import logging
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.errors import DpftError, InputError
from dpft.files import CONFIGURATION, LEDGER, TUNE_CONFIGURATION, TUNING, TUNING_BILL
from dpft.privacy.accounting import EpsilonBound
from dpft.privacy.accounting.summary import delta_text, eps_text
from dpft.records.configuration import SavedConfiguration, read_saved
from dpft.records.costs import Bill, Bound, BoundedRun, NoBound, TuningBill, UnboundedRun
from dpft.records.form import write_record
from dpft.runs.composition import account_for_spent, account_together
from dpft.runs.saved_run import SpentRun, read_spent
from dpft.runs.tuning import read_search

SUM = "sum of epsilons"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SweptRun:
    """One run of a sweep."""

    name: str
    """Of its folder."""
    records: str
    """Which records it trained on, in words: runs of one wording share them."""
    unit: str | None
    """Whose records its epsilon protects; None of a run that nothing bounds."""
    own: EpsilonBound | None
    """What it spent by itself; None of a run that nothing bounds."""
    spent: SpentRun | None
    """Its steps; None of a search, which has no steps to tell, and of an unbounded run."""


def write_tuning_bill(sweep: Path, folders: Sequence[Path]) -> str:
    """Writes the bill of a sweep into its folder and returns it in words.

    Returns:
        Lines of text; none where no run has spent anything.
    """
    runs, unread = defaultdict(list), []
    for folder in folders:
        try:
            for run in _swept(folder):
                runs[run.records].append(run)
        except (DpftError, OSError, ValueError, KeyError, TypeError) as error:
            logger.warning(
                "the tuning bill lacks %s, which cannot be counted: %s", folder.name, error
            )
            unread.append(folder.name)
    bills = [_bill(records, shared) for records, shared in runs.items()]
    if not bills and not unread:
        return ""
    bill = TuningBill(bills=tuple(bills), not_counted=tuple(unread))
    write_record(sweep / TUNING_BILL, bill)
    lines = [_words(bill) for bill in bills]
    lines += [f"not counted: {', '.join(unread)}"] if unread else []
    return "\n".join(lines)


def _swept(folder: Path) -> list[SweptRun]:
    """Returns the private run in a folder, or none."""
    if (folder / TUNING).exists():
        return _search(folder)
    if not (folder / CONFIGURATION).exists():
        return []
    config = _read(folder / CONFIGURATION)
    if config.is_open:
        return [_swept_run(folder, config)]
    if not (folder / LEDGER).exists():
        return []
    spent = read_spent(str(folder))
    if not spent.steps:
        return []
    if spent.plan.reproducible:
        return [_swept_run(folder, config)]
    own = account_for_spent(spent)
    return [_swept_run(folder, config, own, spent)]


def _swept_run(
    folder: Path,
    config: SavedConfiguration,
    own: EpsilonBound | None = None,
    spent: SpentRun | None = None,
) -> SweptRun:
    """Returns a run of a sweep; without ``own`` one without noise, or whose noise a seed made."""
    assert config.task is not None
    records = f"task {config.task.name} from {config.task.data_dir or config.task.source}"
    unit = None if own is None or config.privacy is None else config.privacy.unit
    return SweptRun(name=folder.name, records=records, unit=unit, own=own, spent=spent)


def _search(folder: Path) -> list[SweptRun]:
    """Returns a ``dpft tune``, whose bound holds whether it has ended or not."""
    search = read_search(folder)
    if search is None:
        return []
    config = _read(folder / TUNE_CONFIGURATION)
    if config.privacy is not None and config.privacy.noise_seed is not None:
        return [_swept_run(folder, config)]
    own = EpsilonBound(
        epsilon=search.calibration.epsilon,
        delta=search.delta,
        accountant=search.calibration.accountant,
        epsilons={},
    )
    return [_swept_run(folder, config, own)]


def _read(path: Path) -> SavedConfiguration:
    config = read_saved(path)
    if config is None:
        raise InputError(f"{path} must hold a configuration; put it back as it was.")
    return config


def _bill(records: str, runs: Sequence[SweptRun]) -> Bill:
    try:
        composed: NoBound | Bound = Bound(**_cost(_composed(runs)))
    except InputError as error:
        composed = NoBound(error=str(error))
    return Bill(
        records=records,
        unit=runs[0].unit,
        composed=composed,
        runs=tuple(
            UnboundedRun(run=run.name)
            if run.own is None
            else BoundedRun(run=run.name, **_cost(run.own))
            for run in runs
        ),
    )


def _composed(runs: Sequence[SweptRun]) -> EpsilonBound:
    """Returns what runs that share records cost together."""
    open_runs = [run.name for run in runs if run.own is None]
    if open_runs:
        raise InputError(
            f"{len(open_runs)} of {len(runs)} runs were not private: {', '.join(open_runs)}."
        )
    units = sorted({str(run.unit) for run in runs})
    if len(units) > 1:
        raise InputError(f"their units differ: {', '.join(units)}.")
    owns = [run.own for run in runs if run.own is not None]
    if len(owns) == 1:
        return owns[0]
    spent = [run.spent for run in runs if run.spent is not None]
    costs = [own for run, own in zip(runs, owns, strict=True) if run.spent is None]
    if not costs:
        return account_together(spent)
    costs += [account_together(spent)] if spent else []
    return EpsilonBound(
        epsilon=math.fsum(cost.epsilon for cost in costs),
        delta=math.fsum(cost.delta for cost in costs),
        accountant=SUM,
        epsilons={},
    )


def _cost(spending: EpsilonBound) -> dict[str, Any]:
    return {"epsilon": spending.epsilon, "delta": spending.delta, "accountant": spending.accountant}


def _words(bill: Bill) -> str:
    number, composed = len(bill.runs), bill.composed
    unit = f", unit {bill.unit}" if isinstance(composed, Bound) else ""
    if isinstance(composed, NoBound):
        together = f"no bound for all of them ({composed.error.rstrip('.')})"
    else:
        together = (
            f"epsilon = {eps_text(composed.epsilon)} at delta = {delta_text(composed.delta)} for"
            f" all of them (upper bound by {composed.accountant})"
        )
    return (
        f"tuning bill of {number} run{'s' * (number > 1)} on {bill.records}{unit}:"
        f" {together}; each alone{_alone_in_words(bill.runs)}"
    )


def _alone_in_words(runs: Sequence[BoundedRun | UnboundedRun]) -> str:
    """Returns each run's own epsilon; delta and accountant once if all share them, else each's."""
    bases = {_basis(run) for run in runs if isinstance(run, BoundedRun)}
    (shared,) = bases if len(bases) == 1 else ("",)
    words = [
        f"{run.run}: {eps_text(run.epsilon)}{'' if shared else f' ({_basis(run)})'}"
        if isinstance(run, BoundedRun)
        else f"{run.run}: not private"
        for run in runs
    ]
    return f"{f' ({shared})' if shared else ''} {', '.join(words)}"


def _basis(run: BoundedRun) -> str:
    return f"by {run.accountant} at delta = {delta_text(run.delta)}"
