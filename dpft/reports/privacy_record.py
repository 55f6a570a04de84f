"""The content of privacy.json: what a run guarantees, by whose accounting, and what it assumes.

The headline is a proven upper bound with everything it depends on beside it (docs/design.md,
rule 6). It is rebuilt from the plan and the ledger: steps that the ledger holds are the steps
that are accounted for.
"""

from dataclasses import replace

from dpft.methods.base import ParameterCounts
from dpft.privacy.accounting.curve import EpsilonCurve
from dpft.privacy.accounting.interpretation import noise_warnings
from dpft.privacy.accounting.summary import AccountingReport, account
from dpft.privacy.clipping.sums import rounding_headroom
from dpft.privacy.ledger import LedgerRecord
from dpft.privacy.noise import NOISE_SOURCE
from dpft.privacy.plan import NEIGHBORING_RELATION, SAMPLER, ClippingPlan, PrivacyPlan
from dpft.privacy.randomness import DROPOUT_SOURCE
from dpft.records.form import joined
from dpft.records.ledger import LedgerHead
from dpft.records.promises import (
    NoPromise,
    Origin,
    Parameters,
    Phase,
    PlanPromise,
    PrivateRun,
    SpentCurve,
)
from dpft.reports.epsilon import NOT_PRIVATE_SEED, delta_warnings

NOT_CHECKED = (
    "privacy.self_check=false: whether clipping is exact and examples are independent of each other"
    " and of padding was not checked on synthetic records before training"
)


def account_for_run(plan: PrivacyPlan, ledger: LedgerRecord, accountant: str) -> AccountingReport:
    """Returns the accounting of the steps in the ledger."""
    return account(plan.event(ledger.streams or (1,)), accountant=accountant)


def promise_of(
    plan: PrivacyPlan, accounting: AccountingReport, *, trainable_parameters: int = 1
) -> PlanPromise:
    """Returns what a plan promises: what privacy.json and ``dpft plan`` share.

    ``max_grad_norm`` and ``sensitivity`` are those of the first phase; ``phases`` has each one's.

    Args:
        plan: What a run is bound to.
        accounting: Of its steps.
        trainable_parameters: How many numbers get noise; 1 where that is not known.
    """
    epsilon, accountant = _headline(plan, accounting)
    return PlanPromise(
        epsilon=epsilon,
        delta=accounting.mechanism.delta,
        delta_source=plan.delta_source,
        accountant=accountant,
        epsilons=accounting.epsilons,
        noise_multiplier=accounting.mechanism.noise_multiplier,
        sample_rate=accounting.mechanism.sample_rate,
        steps=plan.steps,
        num_examples=plan.num_examples,
        expected_batch_size=plan.expected_batch_size,
        unit=plan.unit,
        unit_definition=plan.unit_definition,
        neighboring_relation=NEIGHBORING_RELATION,
        sampler=plan.sampler,
        calibration=plan.calibration,
        warnings=(
            *accounting.warnings,
            *delta_warnings(plan.delta, plan.num_examples, source=plan.delta_source),
            *noise_warnings(
                plan.as_independent(),
                expected_batch_size=plan.expected_batch_size,
                trainable_parameters=trainable_parameters,
            ),
        ),
        max_grad_norm=plan.phases[0].max_grad_norm,
        sensitivity=plan.phases[0].sensitivity,
        rounding_headroom=rounding_headroom(plan.expected_batch_size),
        clipping=plan.clipping,
        phases=_phases(plan),
        **plan.mechanism.facts(plan.steps),
    )


def private_run(
    plan: PrivacyPlan,
    accounting: AccountingReport,
    ledger: LedgerRecord,
    counts: ParameterCounts,
    *,
    origin: Origin,
    reproducible: bool,
    size_source: str,
    self_check: bool = True,
    steps_kept: int | None = None,
    curve: EpsilonCurve | None = None,
) -> PrivateRun:
    """Returns the privacy.json of a private run.

    Args:
        plan: What the run was bound to.
        accounting: Of the steps in the ledger.
        ledger: What was done.
        counts: Parameters trained.
        origin: Where the run comes from.
        reproducible: A test seed made the randomness predictable, so nothing is protected.
        size_source: Who says how many examples there are.
        self_check: Whether the clipper was checked before training.
        steps_kept: Steps of the plan that the released model has taken; None: those in the ledger.
        curve: Of epsilon over the plan's steps; None leaves it out.
    """
    promise = promise_of(plan, accounting, trainable_parameters=counts.trainable)
    warnings = [NOT_PRIVATE_SEED, *promise.warnings] if reproducible else [*promise.warnings]
    if not self_check:
        warnings.append(NOT_CHECKED)
    if steps_kept is not None and steps_kept != ledger.steps:
        warnings.append(_taken_again(ledger.steps, steps_kept))
    if promise.participations is not None:
        # of the steps taken, of which streams that broke off have more than were planned
        promise = replace(promise, participations=accounting.mechanism.steps)
    return joined(
        PrivateRun,
        promise,
        origin,
        parameters_of(counts),
        private=not reproducible,
        reproducible=True if reproducible else None,
        warnings=tuple(warnings),
        steps_taken=ledger.steps,
        noise_source=NOISE_SOURCE,
        dropout_source=DROPOUT_SOURCE,
        num_examples_source=size_source,
        ledger=LedgerHead(lines=ledger.lines, head=ledger.head),
        epsilon_curve=None if curve is None else SpentCurve(**vars(curve)),
    )


def _taken_again(taken: int, kept: int) -> str:
    return (
        f"the run broke off, and {taken - kept} of its {taken} noisy steps were taken again with"
        f" new noise: all are counted, and the model has taken {kept}"
    )


def no_promise(
    *,
    num_examples: int,
    expected_batch_size: int,
    steps: int,
    clipping: ClippingPlan | None = None,
) -> NoPromise:
    """Returns what privacy.json and ``dpft plan`` say with ``privacy=none``; there is no epsilon.

    Args:
        num_examples: Training examples.
        expected_batch_size: Examples of a step, drawn without replacement within an epoch; in
            expectation, where they are clipped.
        steps: Steps planned.
        clipping: Of a run that clips and adds no noise; None of any other.
    """
    nothing = NoPromise(
        num_examples=num_examples, expected_batch_size=expected_batch_size, steps=steps, warnings=()
    )
    if clipping is None:
        return nothing
    return joined(
        NoPromise,
        nothing,
        sampler=SAMPLER,
        sample_rate=clipping.sample_rate,
        max_grad_norm=clipping.phases[0].max_grad_norm,
        rounding_headroom=rounding_headroom(expected_batch_size),
        clipping=clipping.clipping,
        phases=_phases(clipping),
    )


def _phases(plan: ClippingPlan) -> tuple[Phase, ...]:
    return tuple(Phase(**vars(phase)) for phase in plan.phases)


def parameters_of(counts: ParameterCounts) -> Parameters:
    """Returns the parameter counts under their names in reports."""
    return Parameters(
        trainable_parameters=counts.trainable,
        new_parameters=counts.new,
        total_parameters=counts.total,
    )


def _headline(plan: PrivacyPlan, accounting: AccountingReport) -> tuple[float, str]:
    """Returns the bound of the planned steps as it was calibrated, on whatever machine."""
    calibration = plan.calibration
    if calibration is not None and accounting.mechanism == plan.event():
        return calibration.epsilon, calibration.accountant
    return accounting.epsilon, accounting.accountant
