"""The content of privacy.json: what a run guarantees, by whose accounting, and what it assumes.

The headline is a proven upper bound with everything it depends on beside it (docs/design.md,
rule 6). It is rebuilt from the plan and the ledger: steps that the ledger holds are the steps
that are accounted for.
"""

from dataclasses import asdict
from typing import Any

from dpft.files import SCHEMA_VERSION
from dpft.methods.base import ParameterCounts
from dpft.privacy.accounting.curve import EpsilonCurve
from dpft.privacy.accounting.signal import noise_warnings
from dpft.privacy.accounting.summary import AccountingReport, account
from dpft.privacy.clipping.sums import rounding_headroom
from dpft.privacy.dropout import DROPOUT_SOURCE
from dpft.privacy.ledger import LedgerRecord
from dpft.privacy.noise import NOISE_SOURCE
from dpft.privacy.plan import SAMPLER, ClippingPlan, PrivacyPlan
from dpft.reports.accounting.epsilon import NOT_PRIVATE_SEED, accounting_record, delta_warnings

NOT_CHECKED = (
    "privacy.self_check=false: whether clipping is exact and examples are independent of each other"
    " and of padding was not checked on synthetic records before training"
)


def account_for_run(plan: PrivacyPlan, ledger: LedgerRecord, accountant: str) -> AccountingReport:
    """Returns the accounting of the steps in the ledger."""
    return account(plan.event(ledger.streams or (1,)), accountant=accountant)


def plan_record(
    plan: PrivacyPlan, accounting: AccountingReport, *, trainable_parameters: int = 1
) -> dict[str, Any]:
    """Returns what a plan promises: the keys that privacy.json and ``dpft plan`` share.

    ``max_grad_norm`` and ``sensitivity`` are those of the first phase; ``phases`` has each one's.

    Args:
        plan: What a run is bound to.
        accounting: Of its steps.
        trainable_parameters: How many numbers get noise; 1 where that is not known.
    """
    record = accounting_record(
        accounting,
        num_examples=plan.num_examples,
        expected_batch_size=plan.expected_batch_size,
        unit=plan.unit,
        calibration=plan.calibration,
        delta_source=plan.delta_source,
    )
    record["sampler"] = plan.sampler
    record["epsilon"], record["accountant"] = _headline(plan, accounting)
    record["warnings"] += delta_warnings(plan.delta, plan.num_examples, source=plan.delta_source)
    record["warnings"] += noise_warnings(
        plan.as_independent(),
        expected_batch_size=plan.expected_batch_size,
        trainable_parameters=trainable_parameters,
    )
    return record | {
        "max_grad_norm": plan.phases[0].max_grad_norm,
        "sensitivity": plan.phases[0].sensitivity,
        "rounding_headroom": rounding_headroom(plan.expected_batch_size),
        "clipping": plan.clipping,
        "unit_definition": plan.unit_definition,
        "steps": plan.steps,
        "phases": [asdict(phase) for phase in plan.phases],
        **plan.mechanism.facts(plan.steps),
    }


def privacy_record(
    plan: PrivacyPlan,
    accounting: AccountingReport,
    ledger: LedgerRecord,
    counts: ParameterCounts,
    *,
    reproducible: bool,
    size_source: str,
    self_check: bool = True,
    steps_kept: int | None = None,
    curve: EpsilonCurve | None = None,
) -> dict[str, Any]:
    """Returns the content of privacy.json of a private run.

    Args:
        plan: What the run was bound to.
        accounting: Of the steps in the ledger.
        ledger: What was done.
        counts: Parameters trained.
        reproducible: A test seed made the randomness predictable, so nothing is protected.
        size_source: Who says how many examples there are.
        self_check: Whether the clipper was checked before training.
        steps_kept: Steps of the plan that the released model has taken; None: those in the ledger.
        curve: Of epsilon over the plan's steps; None leaves it out.
    """
    record = plan_record(plan, accounting, trainable_parameters=counts.trainable)
    record |= {
        "private": not reproducible,
        "steps_taken": ledger.steps,
        "noise_source": NOISE_SOURCE,
        "dropout_source": DROPOUT_SOURCE,
        "num_examples_source": size_source,
        "ledger": {"lines": ledger.lines, "head": ledger.head},
        **parameter_record(counts),
    }
    if "participations" in record:  # those of the plan, of which streams that broke off have more
        record["participations"] = accounting.mechanism.steps
    if curve is not None:
        record["epsilon_curve"] = asdict(curve)
    if not self_check:
        record["warnings"] = [*record["warnings"], NOT_CHECKED]
    if steps_kept is not None and steps_kept != ledger.steps:
        record["warnings"] = [*record["warnings"], _taken_again(ledger.steps, steps_kept)]
    if reproducible:
        record["reproducible"] = True
        record["warnings"] = [NOT_PRIVATE_SEED, *record["warnings"]]
    return record


def _taken_again(taken: int, kept: int) -> str:
    return (
        f"the run broke off, and {taken - kept} of its {taken} noisy steps were taken again with"
        f" new noise: all are counted, and the model has taken {kept}"
    )


def non_private_record(
    *,
    num_examples: int,
    expected_batch_size: int,
    steps: int,
    clipping: ClippingPlan | None = None,
) -> dict[str, Any]:
    """Returns what privacy.json and ``dpft plan`` say with ``privacy=none``; there is no epsilon.

    Args:
        num_examples: Training examples.
        expected_batch_size: Examples of a step, drawn without replacement within an epoch; in
            expectation, where they are clipped.
        steps: Steps planned.
        clipping: Of a run that clips and adds no noise; None of any other.
    """
    clipped = {}
    if clipping is not None:
        clipped = {
            "sampler": SAMPLER,
            "sample_rate": clipping.sample_rate,
            "max_grad_norm": clipping.phases[0].max_grad_norm,
            "rounding_headroom": rounding_headroom(expected_batch_size),
            "clipping": clipping.clipping,
            "phases": [asdict(phase) for phase in clipping.phases],
        }
    return clipped | {
        "schema_version": SCHEMA_VERSION,
        "private": False,
        "num_examples": num_examples,
        "expected_batch_size": expected_batch_size,
        "steps": steps,
        "warnings": [],
    }


def parameter_record(counts: ParameterCounts) -> dict[str, int]:
    """Returns the parameter counts under their names in reports."""
    return {
        "trainable_parameters": counts.trainable,
        "new_parameters": counts.new,
        "total_parameters": counts.total,
    }


def _headline(plan: PrivacyPlan, accounting: AccountingReport) -> tuple[float, str]:
    """Returns the bound of the planned steps as it was calibrated, on whatever machine."""
    calibration = plan.calibration
    if calibration is not None and accounting.mechanism == plan.event():
        return calibration.epsilon, calibration.accountant
    return accounting.epsilon, accounting.accountant
