"""``dpft account``, from top to bottom: compute epsilon from noise, or noise from epsilon.

Without ``run=`` or ``runs=`` no run is needed: the numbers come from the command line. With them
epsilon is rebuilt from the runs' ledgers (``account_runs``). Each answer is a table for people and
a record for programs.
"""

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Literal

from dpft.commands.account_runs import account_run, account_runs
from dpft.config.account import AccountConfig
from dpft.constants import PUBLISHED
from dpft.errors import Fault, InputError
from dpft.privacy.accounting import (
    AccountingReport,
    SampledGaussian,
    account,
    calibrate_noise_multiplier,
)
from dpft.privacy.accounting.calibration import Calibration
from dpft.privacy.accounting.curve import epsilon_over_steps
from dpft.privacy.accounting.interpretation import noise_warnings
from dpft.privacy.mechanisms.base import Numbers
from dpft.privacy.plan import (
    EXAMPLE,
    GIVEN,
    NEIGHBORING_RELATION,
    DeltaSource,
    Relation,
    Sampler,
    default_delta,
    planned_steps,
)
from dpft.reports.epsilon import (
    accounting_table,
    curve_table,
    delta_warnings,
    failure_notes,
    plot_epsilon_over_steps,
)
from dpft.reports.terminal import Answer
from dpft.strict_model import AtLeastOne, Positive, Versioned, merge_models

logger = logging.getLogger(__name__)


class CostOfNumbers(AccountingReport, Versioned):
    """The cost of numbers that were given."""

    private: Literal[True] = True
    """Noise is added."""
    delta_source: DeltaSource
    """given, or published: the papers' 1/(2n)."""
    steps: AtLeastOne
    """Planned noisy steps. Of banded noise, fewer of them cost: those of mechanism."""
    num_examples: AtLeastOne | None = None
    """Number of examples, or of units, taken as public."""
    expected_batch_size: Positive | None = None
    """Units of a step in expectation."""
    unit: str = EXAMPLE
    """Whose contribution is hidden."""
    neighboring_relation: Relation = NEIGHBORING_RELATION
    """How neighboring data sets differ."""
    sampler: Sampler
    """How units are drawn."""
    calibration: Calibration | None = None
    """What chose the noise multiplier. Absent if it was given."""
    curve: tuple[AccountingReport, ...] | None = None
    """The same over growing numbers of steps; with curve=true."""


def answer(config: AccountConfig) -> Answer:
    """Return what was asked; a plot is drawn where ``to`` says so, warnings are logged.

    Raises:
        InputError: Too little is given, the batch is larger than the data, the budget is out of
            reach, or a run cannot be read.
        StateError: A run's ledger is damaged, or has another head than the one given.
    """
    if config.run is not None:
        return account_run(config)
    if config.runs is not None:
        return account_runs(config)

    # 1. The public numbers, each given or derived from others.
    num_examples = config.num_examples
    expected_batch_size: float | None = config.expected_batch_size
    if expected_batch_size is not None:
        num_examples = _required(num_examples, "expected_batch_size", "sample_rate")
        if expected_batch_size > num_examples:
            raise InputError(
                f"expected_batch_size must be at most num_examples={num_examples}, got"
                f" {expected_batch_size}.",
                key="expected_batch_size",
                value=expected_batch_size,
                hint=f"expected_batch_size={num_examples}",
            )
        sample_rate = expected_batch_size / num_examples
    else:
        assert config.sample_rate is not None
        sample_rate = config.sample_rate
    if config.steps is not None:
        steps = config.steps
    elif num_examples is not None and expected_batch_size is not None:
        assert config.epochs is not None
        steps = planned_steps(
            epochs=config.epochs,
            num_examples=num_examples,
            expected_batch_size=expected_batch_size,
        )
    else:
        assert config.epochs is not None
        steps = max(1, math.floor(config.epochs / sample_rate))
    delta = config.delta
    delta_source: DeltaSource = GIVEN
    if delta is None:
        delta_source = PUBLISHED
        delta = default_delta(_required(num_examples, "no delta", "delta"), delta_source)
    if num_examples is not None:
        expected_batch_size = expected_batch_size or sample_rate * num_examples
    mechanism = config.mechanism.choose(
        Numbers(
            num_examples=num_examples or 1,
            expected_batch_size=expected_batch_size or sample_rate,
            steps=steps,
            delta=delta,
            eps=config.eps,
        )
    )
    composed_rate, composed_steps = mechanism.rate(sample_rate), mechanism.compositions((steps,))

    # 2. The noise: given, or the least that keeps within epsilon.
    noise_multiplier, accountant = config.noise_multiplier, config.leader
    calibration: Calibration | None = None
    if noise_multiplier is None:
        assert config.eps is not None
        try:
            noise_multiplier, calibration = calibrate_noise_multiplier(
                eps=config.eps,
                delta=delta,
                sample_rate=composed_rate,
                steps=composed_steps,
                accountant=accountant,
            )
        except InputError as error:
            raise InputError(*map(_without_section, error.faults)) from error
        accountant = calibration.accountant

    # 3. Epsilon, over growing numbers of steps too if it is asked for.
    event = SampledGaussian(
        noise_multiplier=noise_multiplier,
        sample_rate=composed_rate,
        steps=composed_steps,
        delta=delta,
    )
    report = account(event, accountant=accountant)
    curve = tuple(epsilon_over_steps(event, accountant=accountant)) if config.curve else ()
    if curve and config.to is not None:
        plot_epsilon_over_steps(curve, Path(config.to))
        logger.info("plot: %s", config.to)

    # 4. What a reader must know of delta and of the noise.
    warnings: list[str] = []
    if num_examples is not None:
        warnings += delta_warnings(delta, num_examples, source=delta_source)
    if expected_batch_size is not None and not mechanism.has_streams:
        warnings += noise_warnings(event, expected_batch_size=expected_batch_size)
    for warning in warnings:
        logger.warning(warning)

    # 5. The answer.
    table = accounting_table(
        report,
        num_examples=num_examples,
        expected_batch_size=expected_batch_size,
        calibration=calibration,
        delta_source=delta_source,
        steps=mechanism.in_words(steps) if mechanism.has_streams else None,
        sampler=mechanism.sampler_name,
    )
    record = merge_models(
        CostOfNumbers,
        report,
        delta_source=delta_source,
        steps=steps,
        num_examples=num_examples,
        expected_batch_size=expected_batch_size,
        sampler=mechanism.sampler_name,
        calibration=calibration,
        warnings=(*report.warnings, *warnings, *failure_notes(curve)),
        curve=curve or None,
    )
    return Answer(table=f"{table}\n\n{curve_table(curve)}" if curve else table, record=record)


def _without_section(fault: Fault) -> Fault:
    """Return a fault with the keys of ``dpft account``, which has no section ``privacy``."""
    key, hint = (text and text.replace("privacy.", "") for text in (fault.key, fault.hint))
    return replace(fault, message=fault.message.replace("privacy.", ""), key=key, hint=hint)


def _required(num_examples: int | None, because: str, instead: str) -> int:
    if num_examples is None:
        raise InputError(
            f"num_examples is required with {because}. Give num_examples, or {instead} instead.",
            key="num_examples",
        )
    return num_examples
