"""``dpft account``: epsilon from noise or noise from epsilon, and what runs have spent."""

import logging
from collections.abc import Iterable
from pathlib import Path

from dpft.config.account import AccountConfig
from dpft.privacy.accounting.rounding import delta_up
from dpft.privacy.plan import EXAMPLE, NEIGHBORING_RELATION, SAMPLER
from dpft.records.costs import CostOfNumbers
from dpft.reports.accounting.epsilon import (
    accounting_table,
    delta_notes,
    warning_lines,
)
from dpft.reports.accounting.plots import plot_effective_noise, plot_epsilon_over_steps
from dpft.reports.accounting.sweeps import (
    batch_sizes_record,
    curve_record,
    curve_table,
    failure_notes,
    noise_table,
)
from dpft.runs.accounting import (
    Accounting,
    account_for_setting,
    account_over_batch_sizes,
    delta_source,
)
from dpft.runs.answer import Answer
from dpft.runs.spending import ledgers

logger = logging.getLogger(__name__)


def answer(config: AccountConfig) -> Answer:
    """Returns what was asked; plots are drawn where ``to`` says so, warnings are logged.

    Raises:
        InputError: Too little is given, the budget is out of reach, or a run cannot be read.
        StateError: A run's ledger is damaged, or has another head than the one given.
    """
    if config.run is not None:
        return ledgers.one_run(config)
    if config.runs is not None:
        return ledgers.several_runs(config)
    if config.batch_sizes is not None:
        return over_batch_sizes(config)
    return one_setting(config)


def one_setting(config: AccountConfig) -> Answer:
    """Returns what the numbers given cost, its curve drawn where ``to`` says so."""
    accounting = account_for_setting(config)
    if accounting.curve and config.to is not None:
        plot_epsilon_over_steps(accounting.curve, Path(config.to))
        logger.info("plot: %s", config.to)
    _warn(accounting.warnings)
    return Answer(table=_table(accounting), record=_record(accounting))


def over_batch_sizes(config: AccountConfig) -> Answer:
    """Returns the noise for ``eps`` at each of the batch sizes, drawn where ``to`` says so."""
    found = account_over_batch_sizes(config)
    assert config.eps is not None and config.num_examples is not None
    _warn(found.warnings)
    if config.to is not None:
        panels = [(f"fixed {fixed}", points) for fixed, points in found.sweeps.items()]
        plot_effective_noise(panels, Path(config.to))
        logger.info("plot: %s", config.to)
    record = batch_sizes_record(
        found.sweeps,
        fixed={"steps": config.steps, "epochs": config.epochs},
        eps=config.eps,
        delta=found.delta,
        num_examples=config.num_examples,
        warnings=found.warnings,
    )
    at = f"noise for epsilon = {config.eps:g} at delta = {delta_up(found.delta)}"
    lines = [f"{at}, {config.num_examples} examples", "", noise_table(found.sweeps)]
    notes = delta_notes(config.num_examples, source=delta_source(config))
    lines += warning_lines(notes, label="note")
    return Answer(table="\n".join(lines), record=record)


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        logger.warning(warning)


def _record(accounting: Accounting) -> CostOfNumbers:
    report, setting, curve = accounting.report, accounting.setting, accounting.curve
    return CostOfNumbers(
        epsilon=report.epsilon,
        delta=report.mechanism.delta,
        delta_source=setting.delta_source,
        accountant=report.accountant,
        epsilons=report.epsilons,
        noise_multiplier=report.mechanism.noise_multiplier,
        sample_rate=report.mechanism.sample_rate,
        steps=report.mechanism.steps,
        num_examples=setting.num_examples,
        expected_batch_size=setting.expected_batch_size,
        unit=EXAMPLE,
        neighboring_relation=NEIGHBORING_RELATION,
        sampler=SAMPLER,
        calibration=accounting.calibration,
        warnings=(*report.warnings, *accounting.warnings, *failure_notes(curve)),
        curve=curve_record(curve) if curve else None,
    )


def _table(accounting: Accounting) -> str:
    table = accounting_table(
        accounting.report,
        num_examples=accounting.setting.num_examples,
        expected_batch_size=accounting.setting.expected_batch_size,
        calibration=accounting.calibration,
        delta_source=accounting.setting.delta_source,
    )
    return f"{table}\n\n{curve_table(accounting.curve)}" if accounting.curve else table
