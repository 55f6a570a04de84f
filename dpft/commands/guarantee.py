"""Guarantee of a finished run, computed from its ledger for each command that prints it.

privacy.json records the numbers that were printed when it was written. This module reads from that
file only facts that no ledger contains: parameter counts, the origin of the run, the results of
audits, the selection of a search, and the points of the report's figure. Importing this module does
not import torch.
"""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from dpft.commands.composition import PUBLIC_TOKENIZER, account_taken, cost_together
from dpft.commands.ledger_account import SpentRun, read_spent
from dpft.config.keys import in_shell
from dpft.errors import InputError, StateError
from dpft.methods.base import ParameterCounts
from dpft.privacy.accounting import AccountingReport, EpsilonBound
from dpft.privacy.accounting.curve import EpsilonCurve
from dpft.privacy.ledger import Noise
from dpft.privacy.plan import PrivacyPlan
from dpft.reports.privacy_json import Origin, PrivateRun, RunPrivacy, read_privacy
from dpft.reports.privacy_record import (
    private_run,
)
from dpft.reports.report import write_report
from dpft.reports.run_record import RunRecord, find_runs, read_run
from dpft.run_folder import LEDGER, PRIVACY, PRIVATE, refuse_links


def private_guarantee(
    run: SpentRun,
    counts: ParameterCounts,
    *,
    origin: Origin,
    size_source: str,
    tokenizer_is_public: bool = False,
    curve: EpsilonCurve | None = None,
) -> PrivateRun:
    """Return the guarantee of a private run, with epsilon computed from the steps in its ledger.

    Args:
        run: Steps and ledger of the run. The first line of the ledger is the plan.
        counts: Parameter counts of the model.
        origin: Origin of the run.
        size_source: Source of the number of examples.
        tokenizer_is_public: Whether the user stated that the model's tokenizer is public.
        curve: Epsilon over the plan's steps, if it was computed.
    """
    plan, ledger = run.plan, run.ledger
    assert isinstance(plan, PrivacyPlan)
    bound = _bound_of(run)
    accounting = AccountingReport(
        mechanism=plan.event(ledger.streams or (1,)),
        epsilon=bound.epsilon,
        delta=bound.delta,
        accountant=bound.accountant,
        epsilons=bound.epsilons,
        warnings=bound.warnings,
    )
    privacy = private_run(
        plan,
        accounting,
        ledger,
        counts,
        origin=origin,
        size_source=size_source,
        steps_kept=plan.steps,
        curve=curve,
    )
    if plan.tokenizer is None:
        public = (PUBLIC_TOKENIZER,) if tokenizer_is_public else ()
        return privacy.replace(warnings=(*privacy.warnings, *public))
    both = cost_together(run.whole, epsilon=bound.epsilon, delta=bound.delta, before=plan.tokenizer)
    if plan.is_trial:  # no mechanism describes the choice among trials, so the epsilons are added
        both = both.replace(epsilon=both.tokenizer.simple_composition)
    return privacy.replace(with_tokenizer=both)


def _bound_of(run: SpentRun) -> EpsilonBound:
    """Return the bound of a run's own steps, or for a trial the bound of the whole search."""
    plan, calibration = run.plan, run.plan.calibration
    if plan.is_trial and calibration is not None:
        return EpsilonBound(
            epsilon=calibration.epsilon,
            delta=plan.delta,
            accountant=calibration.accountant,
            epsilons={calibration.accountant: calibration.epsilon},
        )
    leader = plan.accountant if calibration is None else calibration.accountant
    return _account(tuple(run.whole.items()), plan.delta, leader)


@cache
def _account(taken: tuple[tuple[Noise, int], ...], delta: float, leader: str) -> EpsilonBound:
    """Return the privacy cost of noisy steps; cached for runs that differ only in their seed."""
    return account_taken(dict(taken), delta, leader)


def privacy_of(folder: Path) -> RunPrivacy:
    """Return the guarantee of a finished run, with epsilon computed from its ledger.

    Raises:
        InputError: The folder has no privacy.json, or belongs to a run that trained no model.
        StateError: A file is damaged, or the ledger is missing or has no closing line.
    """
    if not (folder / PRIVACY).exists():
        raise InputError(
            f"run must be a finished run, but {str(folder)!r} has no {PRIVACY}.",
            key="run",
            value=str(folder),
            hint=f"dpft train {in_shell('resume', folder)}",
        )
    recorded = read_privacy(folder / PRIVACY)
    if not isinstance(recorded, PrivateRun):
        if (folder / LEDGER).exists():
            raise StateError(
                f"{folder / PRIVACY} describes a run without privacy, but {folder / LEDGER}"
                " exists. Restore the file from a backup."
            )
        return recorded
    if not (folder / LEDGER).exists():
        raise StateError(
            f"{folder / LEDGER} is missing, so the privacy cost of the run is unknown. Restore it"
            " from a backup."
        )
    run = read_spent(str(folder), trial=True)
    if not run.ledger.closed or not isinstance(run.plan, PrivacyPlan):
        raise StateError(
            f"{folder / LEDGER} must be the ledger of a finished training, but it has no closing"
            " line. Restore it from a backup."
        )
    privacy = private_guarantee(
        run,
        recorded.parameters,
        origin=Origin(**{name: getattr(recorded, name) for name in Origin.model_fields}),
        size_source=recorded.num_examples_source,
        tokenizer_is_public=PUBLIC_TOKENIZER in recorded.warnings,
        curve=recorded.epsilon_curve,
    )
    return privacy.replace(selection=recorded.selection if run.plan.is_trial else None)


def read_finished_run(folder: Path) -> RunRecord:
    """Return the public files of a finished run, with the guarantee computed from its ledger.

    Raises:
        InputError: As for ``privacy_of``, or a file cannot be read.
        StateError: As for ``privacy_of``.
    """
    return read_run(folder, privacy_of(folder))


def read_finished_runs(folders: Sequence[Path]) -> tuple[list[RunRecord], list[Path]]:
    """Return the records of the finished runs in some folders, and the folders of unfinished runs.

    Raises:
        InputError: A folder contains no run, no run is finished, or a folder contains a symbolic
            link.
        StateError: The files of a run are damaged.
    """
    finished, unfinished = find_runs(folders)
    if not finished:
        raise InputError(
            f"runs must name a finished run, got {len(unfinished)} unfinished.",
            key="runs",
            value=tuple(map(str, unfinished)),
            hint=f"dpft train {in_shell('resume', unfinished[0])}",
        )
    for folder in finished:
        refuse_links(folder)
    return [read_finished_run(folder) for folder in finished], unfinished


def rebuild_report(record: RunRecord) -> None:
    """Write report.md, report.html and the model card of a run again from its public files.

    In the folder of a search, every file keeps its time, which is the time at which the search
    began. A new time would reveal an upper bound on the duration of the search.
    """
    public = [path for path in record.folder.glob("*") if path.name != PRIVATE]
    below = [path for top in public for path in top.rglob("*")]
    times = {path: path.stat().st_mtime_ns for path in (*below, *public, record.folder)}
    write_report(record.folder, record.privacy)
    if record.is_of_search:
        for path, time in times.items():
            os.utime(path, ns=(time, time))
