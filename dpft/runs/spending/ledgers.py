"""``dpft account run=`` and ``runs=``: epsilon rebuilt from what runs wrote down as they went."""

from dataclasses import replace
from pathlib import Path

from dpft.config.account import AccountConfig
from dpft.errors import InputError
from dpft.privacy.accounting import Accountants
from dpft.privacy.witness import check_witnessed
from dpft.runs.answer import Answer
from dpft.runs.spending.bounds import (
    account_for_spent,
    account_together,
    check_head,
    check_same_unit,
)
from dpft.runs.spending.spent_run import SpentRun, find_ledgers, read_spent
from dpft.runs.spending.tables import run_record, run_table, together_record, together_table


def one_run(config: AccountConfig) -> Answer:
    """Returns what ``run=`` asks for.

    Raises:
        InputError: It is no private run's folder.
        StateError: Its ledger is damaged, or has another head than the one given.
    """
    assert config.run is not None
    run = read_spent(config.run)
    run, witnessed = _with_its_end(config, run)
    with Accountants() as accountants:
        spending = account_for_spent(
            run, delta=config.delta, accountant=config.accountant, accountants=accountants
        )
    checked = config.head is not None
    return Answer(
        table=run_table(run, spending, head_checked=checked, witnessed_lines=witnessed),
        record=run_record(run, spending, head_checked=checked, witnessed_lines=witnessed),
    )


def _with_its_end(config: AccountConfig, run: SpentRun) -> tuple[SpentRun, int | None]:
    """Returns the run, with what was lodged elsewhere showing its end, and its witnessed lines.

    A head shows the lines before it and nothing of those behind it, unless it is the closing one's.

    Raises:
        InputError: The witness is not of this run.
        StateError: The ledger is not the one that was lodged.
    """
    witnessed = None
    if config.witness is not None:
        witnessed = check_witnessed(run.ledger, Path(run.folder), Path(config.witness))
        if run.ledger.closed and witnessed == run.ledger.lines:
            run = replace(run, end="witness")
    if config.head is not None:
        check_head(run, config.head)
        if run.ledger.closed:
            run = replace(run, end="head")
    return run, witnessed


def several_runs(config: AccountConfig) -> Answer:
    """Returns what ``runs=`` asks for.

    Raises:
        InputError: They are no private runs, one is named twice, or they differ in their unit.
        StateError: A ledger is damaged.
    """
    found = find_ledgers(
        config.run_folders, leave_out=config.folders_left_out, data_id=config.data_id
    )
    runs = [read_spent(folder) for folder in found.folders]
    if not runs:
        raise InputError(
            f"runs must hold a noisy step, got none in {', '.join(config.run_folders)}."
        )
    check_same_unit(runs)
    with Accountants() as accountants:
        own = [account_for_spent(run, accountants=accountants) for run in runs]
        together = account_together(
            runs, delta=config.delta, accountant=config.accountant, accountants=accountants
        )
    pairs = list(zip(runs, own, strict=True))
    return Answer(
        table=together_table(pairs, together, found.left_out),
        record=together_record(pairs, together, found.left_out),
    )
