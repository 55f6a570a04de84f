"""The content of privacy.json, from a run's plan, ledger and accounting.

The headline is a proven upper bound with everything that it depends on (docs/dev/design.md, rule
6). It is derived from the plan and the ledger, and accounts for exactly the steps in the ledger.

The file also describes the processes that took the steps, their network, and the private trainings
of the starting model. For the best run of a search, it contains the bound of the choice. Lower
bounds of audits are in the file too, but never change epsilon.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dpft.methods.base import ParameterCounts
from dpft.parallel.parallel_config import Process
from dpft.privacy.accounting.curve import EpsilonCurve
from dpft.privacy.accounting.interpretation import noise_warnings
from dpft.privacy.accounting.selection import TrialCount
from dpft.privacy.accounting.summary import AccountingReport
from dpft.privacy.ledger import LedgerHead, LedgerRecord
from dpft.privacy.plan import ClippingPlan, PrivacyPlan, StepsPlan
from dpft.reports.epsilon import NOT_PRIVATE_SEED, delta_warnings
from dpft.reports.privacy_json import NoPromise, Origin, PlanPromise, PrivateRun, Selection
from dpft.strict_model import merge_models


def promise_of(
    plan: PrivacyPlan, accounting: AccountingReport, *, trainable_parameters: int = 1
) -> PlanPromise:
    """Return the guarantee of a plan: the fields that privacy.json and ``dpft plan`` share."""
    from dpft.privacy.clipping.sums import rounding_headroom

    steps = accounting.mechanism.steps
    return PlanPromise(
        private=not plan.reproducible,
        epsilon=accounting.epsilon,
        delta=accounting.delta,
        accountant=accounting.accountant,
        epsilons=accounting.epsilons,
        plan=plan,
        warnings=(
            *accounting.warnings,
            *delta_warnings(plan.delta, plan.num_examples, source=plan.delta_source),
            *noise_warnings(
                plan.as_independent(),
                expected_batch_size=plan.expected_batch_size,
                trainable_parameters=trainable_parameters,
            ),
        ),
        rounding_headroom=rounding_headroom(plan.expected_batch_size),
        participations=steps if plan.mechanism.has_streams else None,
    )


def private_run(
    plan: PrivacyPlan,
    accounting: AccountingReport,
    ledger: LedgerRecord,
    counts: ParameterCounts,
    *,
    origin: Origin,
    size_source: str,
    steps_kept: int | None = None,
    curve: EpsilonCurve | None = None,
) -> PrivateRun:
    """Return the privacy.json of a private run.

    Args:
        plan: Plan of the run.
        accounting: Cost of the steps in the ledger.
        ledger: Content of the ledger.
        counts: Numbers of parameters.
        origin: Origin of the run.
        size_source: Source of the number of examples.
        steps_kept: Number of steps that contributed to the released model; None means all steps in
            the ledger.
        curve: Epsilon over the steps of the plan; None omits the curve.
    """
    from dpft.privacy.noise import NOISE_SOURCE
    from dpft.privacy.randomness import DROPOUT_SOURCE

    promise = promise_of(plan, accounting, trainable_parameters=counts.trainable)
    warnings = [NOT_PRIVATE_SEED, *promise.warnings] if plan.reproducible else [*promise.warnings]
    if steps_kept is not None and steps_kept != ledger.steps:
        again = ledger.steps - steps_kept
        warnings.append(
            f"the run was interrupted, and {again} of its {ledger.steps} noisy steps were repeated"
            f" with new noise. All are counted; the model has taken {steps_kept}"
        )
    return merge_models(
        PrivateRun,
        promise,
        origin,
        parameters=counts,
        warnings=tuple(warnings),
        steps_taken=ledger.steps,
        noise_source=NOISE_SOURCE,
        dropout_source=DROPOUT_SOURCE,
        num_examples_source=size_source,
        ledger=LedgerHead(lines=ledger.lines, head=ledger.head),
        epsilon_curve=curve,
    )


def no_promise(plan: StepsPlan) -> NoPromise:
    """Return the fields of privacy.json and ``dpft plan`` with ``privacy=none``: no epsilon."""
    from dpft.privacy.clipping.sums import rounding_headroom

    clips = isinstance(plan, ClippingPlan)
    return NoPromise(
        plan=plan,
        rounding_headroom=rounding_headroom(plan.expected_batch_size) if clips else None,
    )


def processes_of(sessions: Iterable[Process]) -> tuple[Process, ...] | None:
    """Return the processes of a run for privacy.json; None if there was always one process.

    Args:
        sessions: Each process group that took steps, from ``Ranks.described``.
    """
    distinct: list[Process] = []
    for session in sessions:
        if session not in distinct:
            distinct.append(session)
    return tuple(distinct) if any(session.world_size > 1 for session in distinct) else None


def selection_of(count: TrialCount, *, space: Mapping[str, Sequence[Any]]) -> Selection:
    """Return the description of the choice of the best trial."""
    return Selection(
        theorem="Papernot and Steinke 2022 (arXiv 2110.03620), Theorem 2",
        eta=count.eta,
        gamma=count.gamma,
        expected_trials=count.expected,
        search_space={key: tuple(values) for key, values in space.items()},
    )
