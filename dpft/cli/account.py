"""``dpft account``: epsilon from noise or noise from epsilon, and what runs have spent.

The other ways of asking are in ``dpft.runs.spending.ledgers`` (from ledgers) and
``dpft.runs.account_sweeps`` (over steps and over batch sizes).
"""

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpft.config.account import AccountConfig
from dpft.errors import InputError
from dpft.privacy.accounting import (
    Accountants,
    AccountingReport,
    SampledGaussian,
    account,
    calibrate_noise_multiplier,
)
from dpft.privacy.accounting.signal import noise_warnings
from dpft.privacy.plan import Calibration, default_delta, planned_steps
from dpft.reports.accounting.epsilon import accounting_record, accounting_table, delta_warnings
from dpft.reports.accounting.sweeps import curve_record, curve_table, failure_notes
from dpft.runs import account_sweeps
from dpft.runs.spending import ledgers

CONFIG = AccountConfig
READS_RECORDS = False
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The mechanism's public numbers, each given or derived."""

    num_examples: int | None
    expected_batch_size: float | None
    sample_rate: float
    steps: int
    delta: float


def run(config: AccountConfig) -> None:
    """Prints the accounting, as a table or as one JSON object."""
    if config.run is not None:
        print(ledgers.one_run(config))
    elif config.runs is not None:
        print(ledgers.several_runs(config))
    elif config.batch_sizes is not None:
        print(account_sweeps.over_batch_sizes(config))
    else:
        print(one_setting(config))


def one_setting(config: AccountConfig) -> str:
    """Returns the accounting of the numbers given, over steps too where ``curve`` is on."""
    setting = resolve(config)
    with Accountants() as accountants:
        noise_multiplier, calibration = choose_noise(config, setting, accountants)
        mechanism = SampledGaussian(
            noise_multiplier=noise_multiplier,
            sample_rate=setting.sample_rate,
            steps=setting.steps,
            delta=setting.delta,
        )
        leader = config.leader if calibration is None else calibration.accountant
        report = account(mechanism, accountant=leader, accountants=accountants)
        curve = account_sweeps.curve_of(config, report, leader, accountants)
    size = setting.num_examples
    warnings = delta_warnings(setting.delta, size) if size else []
    if setting.expected_batch_size is not None:
        warnings += noise_warnings(mechanism, expected_batch_size=setting.expected_batch_size)
    for warning in warnings:
        logger.warning(warning)
    return _text(config, setting, report, calibration, warnings, curve)


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
    return Setting(
        num_examples=size,
        expected_batch_size=sample_rate * size if batch is None and size else batch,
        sample_rate=sample_rate,
        steps=_steps(config, sample_rate),
        delta=delta_of(config),
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
            sample_rate=setting.sample_rate,
            steps=setting.steps,
            accountant=config.leader,
            accountants=accountants,
        )
    except InputError as error:  # its keys, where this subcommand has no section for them
        raise InputError(str(error).replace("privacy.", "")) from error


def _steps(config: AccountConfig, sample_rate: float) -> int:
    if config.steps is not None:
        return config.steps
    assert config.epochs is not None
    size, batch = config.num_examples, config.expected_batch_size
    if size is None or batch is None:
        return max(1, math.floor(config.epochs / sample_rate))
    return planned_steps(epochs=config.epochs, num_examples=size, expected_batch_size=batch)


def delta_of(config: AccountConfig) -> float:
    """Returns delta, given or 1/(2 num_examples)."""
    if config.delta is not None:
        return config.delta
    return default_delta(_needed(config.num_examples, "no delta", "delta"))


def _needed(num_examples: int | None, because: str, instead: str) -> int:
    if num_examples is None:
        raise InputError(
            f"num_examples must be given with {because}, got none; give it, or {instead} instead."
        )
    return num_examples


def _text(
    config: AccountConfig,
    setting: Setting,
    report: AccountingReport,
    calibration: Calibration | None,
    warnings: list[str],
    curve: Sequence[AccountingReport],
) -> str:
    size, batch = setting.num_examples, setting.expected_batch_size
    if config.output == "json":
        record = accounting_record(
            replace(report, warnings=(*report.warnings, *warnings)),
            num_examples=size,
            expected_batch_size=batch,
            calibration=calibration,
        )
        if curve:
            record |= {"curve": curve_record(curve)}
            record["warnings"] += failure_notes(curve)
        return json.dumps(record, indent=2, sort_keys=True)
    table = accounting_table(
        report, num_examples=size, expected_batch_size=batch, calibration=calibration
    )
    return f"{table}\n\n{curve_table(curve)}" if curve else table
