"""The content of privacy.json: what a run guarantees, by whose accounting, and where it comes from.

The headline is a proven upper bound with everything it depends on beside it (docs/dev/design.md,
rule 6). It is rebuilt from the plan and the ledger: steps that the ledger holds are the steps
that are accounted for.

Beside it stand the processes that took the steps, with what passed between them; the model that
the run started from, where that one was private already; of the best of a search, the bound of
choosing it; and what audits found, lower bounds beside epsilon, which they never change.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dpft.config.schema import TrainConfig
from dpft.methods.base import ParameterCounts
from dpft.parallel.parallel_config import LOOPBACK_OF_ONE_MACHINE, NOT_SHARDED, Process
from dpft.privacy.accounting.curve import EpsilonCurve
from dpft.privacy.accounting.interpretation import noise_warnings
from dpft.privacy.accounting.selection import TrialCount
from dpft.privacy.accounting.summary import (
    AccountingReport,
    delta_text,
    eps_text,
)
from dpft.privacy.ledger import LedgerHead, LedgerRecord
from dpft.privacy.plan import ClippingPlan, PrivacyPlan, StepsPlan
from dpft.reports.audit_findings import Guesses, GuessesInShort, OneRunAudit, ViewInShort
from dpft.reports.epsilon import NOT_PRIVATE_SEED, delta_warnings
from dpft.reports.promises import (
    NoPromise,
    Origin,
    PlanPromise,
    PrivateRun,
    RunPrivacy,
    Selection,
    StartingModel,
    guarantee,
)
from dpft.strict_model import joined


def promise_of(
    plan: PrivacyPlan, accounting: AccountingReport, *, trainable_parameters: int = 1
) -> PlanPromise:
    """Returns what a plan promises: what privacy.json and ``dpft plan`` share."""
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
    """Returns the privacy.json of a private run.

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
    return joined(
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
    """Returns what privacy.json and ``dpft plan`` say with ``privacy=none``: no epsilon."""
    from dpft.privacy.clipping.sums import rounding_headroom

    clips = isinstance(plan, ClippingPlan)
    return NoPromise(
        plan=plan,
        rounding_headroom=rounding_headroom(plan.expected_batch_size) if clips else None,
    )


NETWORK_ASSUMED = (
    "Assumed: a trusted or encrypted network between the run's machines. Keys and sums without"
    " noise crossed it, and gloo and NCCL neither encrypt nor authenticate."
)


def processes_of(sessions: Iterable[Process]) -> tuple[Process, ...] | None:
    """Returns what privacy.json says of a run's processes; None where it had one all along.

    Args:
        sessions: Each process group that took steps, as ``Ranks.described`` has it.
    """
    distinct: list[Process] = []
    for session in sessions:
        if session not in distinct:
            distinct.append(session)
    return tuple(distinct) if any(each.world_size > 1 for each in distinct) else None


def process_rows(privacy: RunPrivacy) -> list[tuple[str, str]]:
    """Returns the rows of the report's table."""
    return [("processes", _words(session)) for session in privacy.processes or ()]


def network_sentences(privacy: RunPrivacy) -> list[str]:
    """Returns what epsilon rests on beside the arithmetic, where machines spoke to each other."""
    networks = [session.network for session in privacy.processes or ()]
    return [] if set(networks) <= {None, LOOPBACK_OF_ONE_MACHINE} else [NETWORK_ASSUMED]


def _words(session: Process) -> str:
    if session.world_size == 1:
        return "1"
    held = "the whole model" if session.sharding == NOT_SHARDED else "a shard of the model"
    return (
        f"{session.world_size}, each with {held} (sharding: {session.sharding});"
        f" between them: {session.network}"
    )


def started_from(privacy: RunPrivacy) -> str:
    """Returns what is still promised to the records that made the starting model; or nothing."""
    return "".join(f" {_promised(entry)}" for entry in privacy.starting_models or ())


def starting_sentences(privacy: RunPrivacy) -> list[str]:
    """Returns what the epsilons of a run and of the model that it started from are together."""
    promised = [entry for entry in privacy.starting_models or () if entry.private]
    if not promised:
        return []
    costs = [guarantee(entry) for entry in promised]
    if isinstance(privacy, PrivateRun):
        costs.append(guarantee(privacy))
    if len(costs) == 1:
        return []
    total, delta = (sum(each) for each in zip(*costs, strict=True))
    return [
        "Each ε is for the records of its own training. For somebody whose records are in all of"
        f" them the costs add up: at most ε = {eps_text(total)} at δ = {delta_text(delta)} (simple"
        " composition)."
    ]


def _promised(entry: StartingModel) -> str:
    what = f"the records of {entry.data or 'its training'}"
    if not entry.private:
        return (
            f"It started from a model that promises nothing to {what}: its noise was predictable."
        )
    epsilon, delta = guarantee(entry)
    relation = str(entry.neighboring_relation).replace("_", " ")
    promise = f"(ε = {eps_text(epsilon)}, δ = {delta_text(delta)})-differentially private"
    return (
        f"It started from a model that is **{promise}** for {what} ({relation} {entry.unit}), as"
        " that model's training recorded; what is done to it without those records"
        " changes nothing of that."
    )


def selection_of(count: TrialCount, *, space: Mapping[str, Sequence[Any]]) -> Selection:
    """Returns what a report says of how the best trial was chosen."""
    return Selection(
        theorem="Papernot and Steinke 2022 (arXiv 2110.03620), Theorem 2",
        eta=count.eta,
        gamma=count.gamma,
        expected_trials=count.expected,
        search_space={key: tuple(values) for key, values in space.items()},
    )


Row = tuple[str, str]
NO_MIXING = "if what is seen of one canary tells nothing of another's coin"
"""What a test of the mechanism by white-box scores assumes (``dpft.audit.guessing``)."""


def is_contradicted(entry: Guesses) -> str | None:
    """Returns what to say where a lower bound is above the report's epsilon; None where not."""
    if entry.epsilon is None or entry.epsilon_lower <= entry.epsilon:
        return None
    return (
        f"**THE GUARANTEE IS CONTRADICTED: an audit found ε to be at least"
        f" {entry.epsilon_lower:.2f}, and the report says {eps_text(entry.epsilon)}.** Of audits of"
        f" a right guarantee {_chance(entry.confidence)} say so by chance; audit another run,"
        " and do not release this model."
    )


def is_another_mechanism(entry: Guesses) -> str | None:
    """Returns what to say where the mechanism is not the plan's; None where nothing shows it."""
    if not entry.other_mechanism:
        return None
    views: Sequence[Guesses | ViewInShort] = [entry]
    if isinstance(entry, GuessesInShort | OneRunAudit):
        views = entry.views
    telling = [view for view in views if view.other_mechanism]
    assumed = f", {NO_MIXING}," if all(view.assumes_no_mixing for view in telling) else ""
    return (
        "**NOT THIS MECHANISM: an audit found more canaries than the planned noise and sampling"
        " allow, so something else was carried out than what was accounted for.** Of audits of a"
        f" right run {_chance(entry.mechanism_confidence)} say so by chance{assumed}; audit"
        " another run, and do not release this model."
    )


def canary_sentences(config: TrainConfig) -> list[str]:
    """Returns what canaries among the records do to epsilon and delta; nothing where none are."""
    if not _has_canaries(config):
        return []
    counted = (
        "Canaries: the number of examples counts canaries of audits, those with a coin whatever it"
        " said, so the sample rate, and a δ that follows from the number, are of records and"
        " canaries together; ε holds for each record, and for each canary, as for any other."
    )
    watched = (
        "White box: each step's noisy gradient was held against every canary's own"
        " (`audit.white_box=true`). ε covers what that shows of records; of canaries it tells the"
        " coins, and stands under `private/`."
    )
    return [counted, watched] if config.audit.white_box else [counted]


def unprotected_canaries(config: TrainConfig, privacy: RunPrivacy) -> list[str]:
    """Returns what to say of canaries in a run without privacy; nothing where none are."""
    if isinstance(privacy, PrivateRun) or not _has_canaries(config):
        return []
    return [
        "Warning: canaries of audits are among the records of this run, which is not private: a"
        " lower bound of ε has nothing to stand beside."
    ]


def alarms(privacy: RunPrivacy) -> list[str]:
    """Returns what stands before everything else in a report, as found by audits."""
    if privacy.audited is None or privacy.audited.one_run is None:
        return []
    entry = privacy.audited.one_run
    return [said for said in (is_contradicted(entry), is_another_mechanism(entry)) if said]


def audited_rows(privacy: RunPrivacy) -> list[Row]:
    """Returns quantity and value of what audits found; none where none was made."""
    found = privacy.audited
    if found is None:
        return []
    rows = [] if found.one_run is None else one_run_rows(found.one_run)
    return rows + ([] if found.exposure is None else list(found.exposure.rows))


def one_run_rows(entry: Guesses) -> list[Row]:
    """Returns what an audit in one run found, quantity and value in words."""
    promised = "none: this run is not private" if entry.epsilon is None else eps_text(entry.epsilon)
    sure = f"{100 * entry.confidence:g} %"
    return [
        ("threat model", entry.threat_model),
        (f"ε is at least, with {sure} confidence", f"{entry.epsilon_lower:.2f}"),
        ("ε is at most, by the accountant", promised),
        ("δ of both", f"{entry.delta:.3g}"),
        ("canaries, each trained on by a secret coin", str(entry.canaries)),
        ("coins guessed, and rightly", f"{entry.guesses}, {entry.correct}"),
        ("the most that so many canaries could show", f"{entry.largest_epsilon_lower:.2f}"),
        ("ε is at least, if the noise is Gaussian", f"{entry.epsilon_lower_if_gaussian:.2f}"),
        *_against_plan(entry),
    ]


def _has_canaries(config: TrainConfig) -> bool:
    return bool(config.audit.canaries or config.audit.exposure_canaries)


def _against_plan(entry: Guesses) -> list[Row]:
    if entry.p_value_of_plan is None:
        return []
    verdict = "no" if entry.other_mechanism else "yes"
    assumed = f", {NO_MIXING}" if entry.assumes_no_mixing else ""
    value = f"{verdict} (p = {entry.p_value_of_plan:.2g}{assumed})"
    return [("possible under the planned mechanism", value)]


def _chance(confidence: float) -> str:
    return f"at most {100 * (1 - confidence):.2g} %"
