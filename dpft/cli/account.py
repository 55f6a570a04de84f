"""``dpft account``: epsilon from noise or noise from epsilon, and what runs have spent."""

import json
import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from dpft.config.account import AccountConfig
from dpft.privacy.accounting.rounding import delta_up
from dpft.reports.accounting.epsilon import accounting_record, accounting_table
from dpft.reports.accounting.plots import plot_effective_noise, plot_epsilon_over_steps
from dpft.reports.accounting.sweeps import (
    batch_sizes_record,
    curve_record,
    curve_table,
    failure_notes,
    noise_table,
)
from dpft.runs.accounting import Accounting, account_for_setting, account_over_batch_sizes
from dpft.runs.spending import ledgers

CONFIG = AccountConfig
READS_RECORDS = False
logger = logging.getLogger(__name__)


def run(config: AccountConfig) -> None:
    """Prints the accounting, as a table or as one JSON object."""
    if config.run is not None:
        print(ledgers.one_run(config))
    elif config.runs is not None:
        print(ledgers.several_runs(config))
    elif config.batch_sizes is not None:
        print(over_batch_sizes(config))
    else:
        print(one_setting(config))


def one_setting(config: AccountConfig) -> str:
    """Returns what the numbers given cost, its curve drawn where ``to`` says so."""
    accounting = account_for_setting(config)
    if accounting.curve and config.to is not None:
        plot_epsilon_over_steps(accounting.curve, Path(config.to))
        logger.info("plot: %s", config.to)
    warn(accounting.warnings)
    return json_of(accounting) if config.output == "json" else table_of(accounting)


def over_batch_sizes(config: AccountConfig) -> str:
    """Returns the noise for ``eps`` at each of the batch sizes, drawn where ``to`` says so."""
    found = account_over_batch_sizes(config)
    warn(found.warnings)
    if config.to is not None:
        panels = [(f"fixed {fixed}", points) for fixed, points in found.sweeps.items()]
        plot_effective_noise(panels, Path(config.to))
        logger.info("plot: %s", config.to)
    if config.output == "json":
        record = batch_sizes_record(
            found.sweeps,
            fixed={"steps": config.steps, "epochs": config.epochs},
            eps=config.eps,
            delta=found.delta,
            num_examples=config.num_examples,
            warnings=found.warnings,
        )
        return json.dumps(record, indent=2, sort_keys=True)
    at = f"noise for epsilon = {config.eps:g} at delta = {delta_up(found.delta)}"
    return f"{at}, {config.num_examples} examples\n\n{noise_table(found.sweeps)}"


def warn(warnings: Iterable[str]) -> None:
    """Says on stderr what a reader must know of the numbers."""
    for warning in warnings:
        logger.warning(warning)


def json_of(accounting: Accounting) -> str:
    """Returns an accounting as one JSON object."""
    report, setting, curve = accounting.report, accounting.setting, accounting.curve
    record = accounting_record(
        replace(report, warnings=(*report.warnings, *accounting.warnings)),
        num_examples=setting.num_examples,
        expected_batch_size=setting.expected_batch_size,
        calibration=accounting.calibration,
    )
    if curve:
        record |= {"curve": curve_record(curve)}
        record["warnings"] += failure_notes(curve)
    return json.dumps(record, indent=2, sort_keys=True)


def table_of(accounting: Accounting) -> str:
    """Returns an accounting as a table."""
    table = accounting_table(
        accounting.report,
        num_examples=accounting.setting.num_examples,
        expected_batch_size=accounting.setting.expected_batch_size,
        calibration=accounting.calibration,
    )
    return f"{table}\n\n{curve_table(accounting.curve)}" if accounting.curve else table
