"""``dpft account``: compute epsilon from noise, or noise from epsilon.

Without ``run=`` or ``runs=``, the command needs no run and reads its numbers from the command line.
With either of them, ``account_runs`` recomputes epsilon from the ledgers of the runs. Each answer
consists of a table to print and a record for programs.
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
    """Privacy cost computed from numbers that the user gave."""

    private: Literal[True] = True
    """Always true, because noise is added."""
    delta_source: DeltaSource
    """Origin of delta: given by the user, or published, which means 1/(2n) as in the papers."""
    steps: AtLeastOne
    """Number of planned noisy steps. With banded noise, epsilon is computed for the smaller number
    of steps in ``mechanism``."""
    num_examples: AtLeastOne | None = None
    """Number of examples or privacy units, treated as public."""
    expected_batch_size: Positive | None = None
    """Expected number of units per step."""
    unit: str = EXAMPLE
    """Privacy unit, whose contribution is hidden."""
    neighboring_relation: Relation = NEIGHBORING_RELATION
    """How neighboring datasets differ."""
    sampler: Sampler
    """How units are sampled."""
    calibration: Calibration | None = None
    """How the noise multiplier was chosen; absent if it was given."""
    curve: tuple[AccountingReport, ...] | None = None
    """Privacy cost for increasing numbers of steps, with ``curve=true``."""


def answer(config: AccountConfig) -> Answer:
    """Return the requested numbers, draw a plot if ``to`` is set, and log warnings.

    Raises:
        InputError: Numbers are missing, the batch is larger than the dataset, no noise meets the
            budget, or a run cannot be read.
        StateError: The ledger of a run is damaged, or its head differs from the given one.
    """
    if config.run is not None:
        return account_run(config)
    if config.runs is not None:
        return account_runs(config)

    # 1. The public numbers, given or derived.
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

    # 2. The noise: given, or the smallest noise multiplier that meets the target epsilon.
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

    # 3. Epsilon, and on request epsilon for increasing numbers of steps.
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

    # 4. Warnings about delta and the noise.
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
    """Return a fault without ``privacy.``, a section that ``dpft account`` does not have."""
    key, hint = (text and text.replace("privacy.", "") for text in (fault.key, fault.hint))
    return replace(fault, message=fault.message.replace("privacy.", ""), key=key, hint=hint)


def _required(num_examples: int | None, because: str, instead: str) -> int:
    if num_examples is None:
        raise InputError(
            f"num_examples is required with {because}. Give num_examples, or {instead} instead.",
            key="num_examples",
        )
    return num_examples
