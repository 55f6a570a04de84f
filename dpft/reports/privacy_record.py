"""Fill privacy.json from a run's plan, ledger and accounting.

The headline is a proven upper bound with everything it depends on beside it (docs/dev/design.md,
rule 6). It is rebuilt from the plan and the ledger: steps that the ledger holds are the steps
that are accounted for.

Beside it stand the processes that took the steps, with what passed between them; the model that
the run started from, where that one was private already; of the best of a search, the bound of
choosing it; and what audits found, lower bounds beside epsilon, which they never change.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dpft.methods.base import ParameterCounts
from dpft.parallel.parallel_config import Process
from dpft.privacy.accounting.curve import EpsilonCurve
from dpft.privacy.accounting.interpretation import noise_warnings
from dpft.privacy.accounting.selection import TrialCount
from dpft.privacy.accounting.summary import (
    AccountingReport,
)
from dpft.privacy.ledger import LedgerHead, LedgerRecord
from dpft.privacy.plan import ClippingPlan, PrivacyPlan, StepsPlan
from dpft.reports.epsilon import NOT_PRIVATE_SEED, delta_warnings
from dpft.reports.privacy_json import (
    NoPromise,
    Origin,
    PlanPromise,
    PrivateRun,
    Selection,
)
from dpft.strict_model import merge_models


def promise_of(
    plan: PrivacyPlan, accounting: AccountingReport, *, trainable_parameters: int = 1
) -> PlanPromise:
    """Return what a plan promises: what privacy.json and ``dpft plan`` share."""
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
        plan: What the run was bound to.
        accounting: Of the steps in the ledger.
        ledger: What was done.
        counts: Parameters trained.
        origin: Where the run comes from.
        size_source: Who says how many examples there are.
        steps_kept: Steps of the plan that the released model has taken; None: those in the ledger.
        curve: Of epsilon over the plan's steps; None leaves it out.
    """
    from dpft.privacy.noise import NOISE_SOURCE
    from dpft.privacy.randomness import DROPOUT_SOURCE

    promise = promise_of(plan, accounting, trainable_parameters=counts.trainable)
    warnings = [NOT_PRIVATE_SEED, *promise.warnings] if plan.reproducible else [*promise.warnings]
    if steps_kept is not None and steps_kept != ledger.steps:
        again = ledger.steps - steps_kept
        warnings.append(
            f"the run broke off, and {again} of its {ledger.steps} noisy steps were taken again"
            f" with new noise: all are counted, and the model has taken {steps_kept}"
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
    """Return what privacy.json and ``dpft plan`` say with ``privacy=none``: no epsilon."""
    from dpft.privacy.clipping.sums import rounding_headroom

    clips = isinstance(plan, ClippingPlan)
    return NoPromise(
        plan=plan,
        rounding_headroom=rounding_headroom(plan.expected_batch_size) if clips else None,
    )


def processes_of(sessions: Iterable[Process]) -> tuple[Process, ...] | None:
    """Return the entry on a run's processes in privacy.json; None if there was always one process.

    Args:
        sessions: Each process group that took steps, as ``Ranks.described`` has it.
    """
    distinct: list[Process] = []
    for session in sessions:
        if session not in distinct:
            distinct.append(session)
    return tuple(distinct) if any(session.world_size > 1 for session in distinct) else None


def selection_of(count: TrialCount, *, space: Mapping[str, Sequence[Any]]) -> Selection:
    """Return what a report says of how the best trial was chosen."""
    return Selection(
        theorem="Papernot and Steinke 2022 (arXiv 2110.03620), Theorem 2",
        eta=count.eta,
        gamma=count.gamma,
        expected_trials=count.expected,
        search_space={key: tuple(values) for key, values in space.items()},
    )
