"""``dpft account``: epsilon from noise or noise from epsilon, and what runs have spent.

Without ``run=`` or ``runs=`` no run is needed: the numbers come from the command line.
``dpft.runs.spending`` accounts for what runs wrote down.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.config.account import AccountConfig
from dpft.errors import InputError, RunError
from dpft.kinds import PUBLISHED
from dpft.privacy.accounting import (
    Accountants,
    AccountingReport,
    SampledGaussian,
    account,
    calibrate_noise_multiplier,
)
from dpft.privacy.accounting.batch_sizes import BatchSizeNoise, noise_over_batch_sizes
from dpft.privacy.accounting.curve import epsilon_over_steps
from dpft.privacy.accounting.interpretation import noise_warnings
from dpft.privacy.accounting.summary import delta_text
from dpft.privacy.mechanisms.base import Mechanism, Numbers
from dpft.privacy.plan import (
    EXAMPLE,
    GIVEN,
    NEIGHBORING_RELATION,
    default_delta,
    planned_steps,
)
from dpft.records.costs import CostOfNumbers
from dpft.records.ledger import Calibration
from dpft.reports.epsilon import (
    accounting_table,
    batch_sizes_record,
    curve_record,
    curve_table,
    delta_notes,
    delta_warnings,
    failure_notes,
    noise_table,
    plot_effective_noise,
    plot_epsilon_over_steps,
    warning_lines,
)
from dpft.reports.terminal import Answer
from dpft.runs import ledgers


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The mechanism's public numbers, each given or derived."""

    num_examples: int | None
    expected_batch_size: float | None
    sample_rate: float
    steps: int
    delta: float
    delta_source: str
    """``GIVEN``, or the rule that made delta of the number of examples."""
    mechanism: Mechanism
    """How draws and noise of the steps hang together."""

    def event(self, noise_multiplier: float) -> SampledGaussian:
        """Returns what accountants judge."""
        return SampledGaussian(
            noise_multiplier=noise_multiplier,
            sample_rate=self.mechanism.rate(self.sample_rate),
            steps=self.mechanism.compositions((self.steps,)),
            delta=self.delta,
        )


@dataclass(frozen=True, kw_only=True)
class Accounting:
    """What a setting costs, or what noise keeps it within a budget."""

    setting: Setting
    report: AccountingReport
    calibration: Calibration | None
    """What chose the noise; None where it was given."""
    warnings: tuple[str, ...]
    """What a reader must know of delta and of the noise, a sentence each."""
    curve: tuple[AccountingReport, ...] = ()
    """The same over growing numbers of steps, ascending, where that was asked for."""


@dataclass(frozen=True, kw_only=True)
class BatchSizeSweep:
    """The noise that ``eps`` takes at growing batch sizes, at fixed steps and at fixed epochs."""

    delta: float
    sweeps: Mapping[str, Sequence[BatchSizeNoise]]
    """By what is fixed, such as ``steps = 100``."""
    warnings: tuple[str, ...]


def account_for_setting(config: AccountConfig) -> Accounting:
    """Returns the accounting of the numbers given, over steps too where ``curve`` is on.

    Raises:
        InputError: Too little is given, the batch is larger than the data, or the budget is out of
            reach.
    """
    setting = resolve(config)
    with Accountants() as accountants:
        noise_multiplier, calibration = choose_noise(config, setting, accountants)
        mechanism = setting.event(noise_multiplier)
        leader = config.leader if calibration is None else calibration.accountant
        report = account(mechanism, accountant=leader, accountants=accountants)
        curve = (
            epsilon_over_steps(mechanism, accountant=leader, accountants=accountants)
            if config.curve
            else []
        )
    size = setting.num_examples
    warnings = delta_warnings(setting.delta, size, source=delta_source(config)) if size else []
    if setting.expected_batch_size is not None and not setting.mechanism.has_streams:
        warnings += noise_warnings(mechanism, expected_batch_size=setting.expected_batch_size)
    return Accounting(
        setting=setting,
        report=report,
        calibration=calibration,
        warnings=tuple(warnings),
        curve=tuple(curve),
    )


def account_over_batch_sizes(config: AccountConfig) -> BatchSizeSweep:
    """Returns the noise for ``eps`` at each of the batch sizes.

    Raises:
        InputError: The budget is out of reach.
    """
    assert config.num_examples is not None
    delta = delta_of(config)
    with Accountants() as accountants:
        sweeps = _sweeps(config, delta, accountants)
    warnings = delta_warnings(delta, config.num_examples, source=delta_source(config))
    return BatchSizeSweep(delta=delta, sweeps=sweeps, warnings=tuple(warnings))


def resolve(config: AccountConfig) -> Setting:
    """Returns the numbers that follow from those given.

    Raises:
        InputError: Too little is given, or the batch is larger than the data.
    """
    size, batch = config.num_examples, config.expected_batch_size
    if batch is not None:
        size = _needed(size, "expected_batch_size", "sample_rate")
        if batch > size:
            raise InputError(
                f"expected_batch_size must be at most num_examples={size}, got {batch}; lower it."
            )
        sample_rate = batch / size
    else:
        assert config.sample_rate is not None
        sample_rate = config.sample_rate
    steps, delta = _steps(config, sample_rate), delta_of(config)
    expected = sample_rate * size if batch is None and size else batch
    numbers = Numbers(
        num_examples=size or 1,
        expected_batch_size=expected or sample_rate,
        steps=steps,
        delta=delta,
        eps=config.eps,
    )
    return Setting(
        num_examples=size,
        expected_batch_size=expected,
        sample_rate=sample_rate,
        steps=steps,
        delta=delta,
        delta_source=delta_source(config),
        mechanism=config.mechanism.choose(numbers),
    )


def choose_noise(
    config: AccountConfig, setting: Setting, accountants: Accountants
) -> tuple[float, Calibration | None]:
    """Returns the noise multiplier, and what chose it where eps was given."""
    if config.noise_multiplier is not None:
        return config.noise_multiplier, None
    assert config.eps is not None
    try:
        return calibrate_noise_multiplier(
            eps=config.eps,
            delta=setting.delta,
            sample_rate=setting.mechanism.rate(setting.sample_rate),
            steps=setting.mechanism.compositions((setting.steps,)),
            accountant=config.leader,
            accountants=accountants,
        )
    except (InputError, RunError) as error:  # its keys: this subcommand has no section for them
        raise type(error)(str(error).replace("privacy.", "")) from error


def _steps(config: AccountConfig, sample_rate: float) -> int:
    if config.steps is not None:
        return config.steps
    assert config.epochs is not None
    size, batch = config.num_examples, config.expected_batch_size
    if size is None or batch is None:
        return max(1, math.floor(config.epochs / sample_rate))
    return planned_steps(epochs=config.epochs, num_examples=size, expected_batch_size=batch)


def delta_of(config: AccountConfig) -> float:
    """Returns delta, given or the papers' 1/(2 num_examples)."""
    if config.delta is not None:
        return config.delta
    return default_delta(_needed(config.num_examples, "no delta", "delta"), PUBLISHED)


def delta_source(config: AccountConfig) -> str:
    """Returns whether delta was given, or that it is the papers'."""
    return PUBLISHED if config.delta is None else GIVEN


def _needed(num_examples: int | None, because: str, instead: str) -> int:
    if num_examples is None:
        raise InputError(
            f"num_examples must be given with {because}, got none; give it, or {instead} instead."
        )
    return num_examples


def _sweeps(
    config: AccountConfig, delta: float, accountants: Accountants
) -> dict[str, list[BatchSizeNoise]]:
    assert config.batch_sizes is not None
    assert config.eps is not None
    assert config.num_examples is not None
    fixed: dict[str, dict[str, Any]] = {
        f"steps = {config.steps}": {"steps": config.steps},
        f"epochs = {config.epochs}": {"epochs": config.epochs},
    }
    return {
        name: noise_over_batch_sizes(
            config.batch_sizes,
            eps=config.eps,
            delta=delta,
            num_examples=config.num_examples,
            accountant=config.leader,
            accountants=accountants,
            **value,
        )
        for name, value in fixed.items()
        if None not in value.values()
    }


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
    at = f"noise for epsilon = {config.eps:g} at delta = {delta_text(found.delta)}"
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
        steps=setting.steps,
        num_examples=setting.num_examples,
        expected_batch_size=setting.expected_batch_size,
        unit=EXAMPLE,
        neighboring_relation=NEIGHBORING_RELATION,
        sampler=setting.mechanism.sampler_name,
        participations=report.mechanism.steps if setting.mechanism.has_streams else None,
        calibration=accounting.calibration,
        warnings=(*report.warnings, *accounting.warnings, *failure_notes(curve)),
        curve=curve_record(curve) if curve else None,
    )


def _table(accounting: Accounting) -> str:
    mechanism = accounting.setting.mechanism
    table = accounting_table(
        accounting.report,
        num_examples=accounting.setting.num_examples,
        expected_batch_size=accounting.setting.expected_batch_size,
        calibration=accounting.calibration,
        delta_source=accounting.setting.delta_source,
        steps=mechanism.in_words(accounting.setting.steps) if mechanism.has_streams else None,
        sampler=mechanism.sampler_name,
    )
    return f"{table}\n\n{curve_table(accounting.curve)}" if accounting.curve else table
