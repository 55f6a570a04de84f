"""``dpft account run=`` and ``runs=``: compute what runs have spent from their ledgers.

It is separate from ``account``, which computes with numbers that belong to no run.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import Field

from dpft.commands.composition import (
    account_for_spent,
    account_together,
    check_head,
    spent_beside,
    without_counted,
)
from dpft.commands.ledger_account import (
    CLOSING_LINE,
    SpentRun,
    find_ledgers,
    read_spent,
    read_spent_of_synthesis,
)
from dpft.config.account import AccountConfig
from dpft.errors import InputError
from dpft.privacy.accounting import EpsilonBound
from dpft.privacy.accounting.summary import delta_text, eps_text
from dpft.privacy.ledger import LedgerHead, Noise
from dpft.privacy.plan import NO_SAMPLING, SAMPLER, Plan, PrivacyPlan, Relation, Sampler
from dpft.reports.epsilon import accountant_lines, delta_notes, headline_of, warning_lines
from dpft.reports.terminal import Answer
from dpft.strict_model import (
    AtLeastOne,
    Count,
    NotNegative,
    RunId,
    StrictModel,
    Versioned,
    merge_models,
    values_of,
)

MIXED: Final = "mixed"
"""The sampler of runs that drew units in several ways."""
SAME_DATA = (
    "dpft cannot see which data a run was trained on: this epsilon holds if these runs, and no"
    " others, were trained on the same data"
)


class StepsOfNoise(Noise):
    """Steps of one noise."""

    steps: AtLeastOne
    """How many."""


class LedgerAsRead(LedgerHead):
    """The ledger as it was read."""

    run_id: RunId | None = None
    """What its first line names the run by, 32 hexadecimal digits."""
    closed: bool
    """Whether its last line is the closing one."""
    torn: bool
    """Whether a line was being written when the run broke off."""
    end: str
    """What shows that no step is missing; unproven: nothing does."""
    head_checked: Literal[True] | None = None
    """With head=: its head is the one that was given."""


class RunCost(EpsilonBound, Versioned):
    """What a run has spent by its ledger."""

    run: str
    """The run's folder, as it was given."""
    private: bool
    """Whether epsilon protects anybody: false without noise, and where a test seed made the noise.
    """
    plan: Plan
    """What the run is bound to, in the ledger's first line."""
    mechanisms: tuple[StepsOfNoise, ...]
    """What was done, by noise."""
    steps_taken: Count
    """Noisy steps that are accounted for."""
    ledger: LedgerAsRead
    """The ledger as it was read."""


class SimpleComposition(StrictModel):
    """The sums of what each run reports by itself."""

    epsilon: NotNegative
    """Sum of epsilons."""
    delta: NotNegative
    """Sum of deltas."""


class CostOfRuns(EpsilonBound, Versioned):
    """What several runs on the same data have spent together."""

    runs: Annotated[tuple[RunCost, ...], Field(min_length=1)]
    """Each run by itself."""
    private: bool
    """Whether epsilon protects anybody: false without noise, and where a test seed made the noise.
    """
    sampler: Sampler
    """How units were drawn."""
    unit: str
    """Whose contribution is hidden: example, chunk, or a column."""
    neighboring_relation: Relation
    """How neighboring data sets differ."""
    steps_taken: Count
    """Noisy steps of all runs."""
    simple_composition: SimpleComposition
    """The sums of what each run reports by itself."""
    same_data: str
    """That the runs share data is the word of whoever asked."""
    left_out: tuple[str, ...]
    """Folders that are not counted, each with the reason."""


def account_run(config: AccountConfig) -> Answer:
    """Return what the run of ``run=`` has spent.

    Raises:
        InputError: It is no private run's folder.
        StateError: Its ledger is damaged, or has another head than the one given.
    """
    assert config.run is not None
    run = read_spent_of_synthesis(config.run)
    head_checked = config.head is not None
    if config.head is not None:
        check_head(run, config.head)
        if run.ledger.closed:  # a head says nothing of lines behind it, unless it is the last
            run = replace(run, end="head")
    bound = account_for_spent(run, delta=config.delta, accountant=config.accountant)
    return Answer(
        table=run_table(run, bound, head_checked=head_checked),
        record=run_record(run, bound, head_checked=head_checked),
    )


def run_table(run: SpentRun, bound: EpsilonBound, *, head_checked: bool) -> str:
    """Return a run's ledger, its steps, every accountant's answer and the headline.

    Args:
        run: What its folder says.
        bound: What its steps cost.
        head_checked: Whether the ledger's head was found to be the one lodged elsewhere.
    """
    plan, ledger = run.plan, run.ledger
    ledger_text = f"{ledger.lines} lines, closed"
    if not ledger.closed:
        torn = "" if ledger.torn_at is None else " and a torn one"
        ledger_text = f"{ledger.lines} lines{torn}, not closed: the run has not ended"
    rows = [
        ("run", run.folder),
        ("ledger", ledger_text),
        ("run id", str(ledger.run_id)),
        ("head", ledger.head),
    ]
    if head_checked:
        rows.append(("", "is the head that was given"))
    proof = f"shown by {run.end}" if run.end else "unproven"
    if run.end == CLOSING_LINE:
        proof = f"shown by the {run.end} alone, which whoever owns the folder can write"
    rows.append(("end", proof))
    for noise, steps in run.taken.items():
        threshold = ""
        if noise.threshold_delta:
            threshold = f", and a threshold that takes {noise.threshold_delta:.4g} of delta"
        text = f"{steps} of noise multiplier {noise.noise_multiplier:.6g}"
        rows.append(("steps", f"{text} at sample rate {noise.sample_rate:.6g}{threshold}"))
    num_composed = sum(run.taken.values())
    if num_composed != run.steps:
        rows[-1] = ("costs as", rows[-1][1])
    if plan.counts is not None:
        multiplier = plan.counts.mechanism.noise_multiplier
        text = f"1 of noise multiplier {multiplier:.6g}, run {plan.counts.run_id}"
        rows.append(("counts", f"{text}: the histogram of its synthesis, in epsilon too"))
    rows += [
        ("batch", f"{plan.expected_batch_size:g} expected"),
        ("units", f"{plan.num_examples} (taken as public)"),
        ("delta", delta_text(bound.delta)),
    ]
    lines = [f"{label:<10}{value}" for label, value in rows]
    if bound.epsilons:
        lines += ["", *accountant_lines(bound.epsilons)]
    steps_taken = f"{run.steps} steps taken of {plan.steps} planned"
    if isinstance(plan, PrivacyPlan) and plan.mechanism.has_streams:
        steps_taken += f", of which a unit is in {num_composed} at most"
    lines += ["", _headline(bound, steps_taken, plan.unit, plan.sampler)]
    lines += warning_lines(bound.warnings)
    if bound.delta == plan.delta:
        notes = delta_notes(plan.num_examples, source=plan.delta_source)
        lines += warning_lines(notes, label="note")
    return "\n".join(lines)


def run_record(run: SpentRun, bound: EpsilonBound, *, head_checked: bool = False) -> RunCost:
    """Return the same as it is printed; what is not known has no key."""
    ledger = run.ledger
    return RunCost(
        **values_of(bound, EpsilonBound),
        run=run.folder,
        private=not run.plan.reproducible,
        plan=run.plan,
        mechanisms=tuple(
            merge_models(StepsOfNoise, noise, steps=steps) for noise, steps in run.whole.items()
        ),
        steps_taken=run.steps,
        ledger=LedgerAsRead(
            run_id=ledger.run_id,
            lines=ledger.lines,
            head=ledger.head,
            closed=ledger.closed,
            torn=ledger.torn_at is not None,
            end=run.end or "unproven",
            head_checked=head_checked or None,
        ),
    )


def account_runs(config: AccountConfig) -> Answer:
    """Return what the runs of ``runs=`` have spent together, and each of them by itself.

    Raises:
        InputError: A folder holds no run, no run took a step, or they protect different units.
        StateError: A ledger is damaged.
    """
    ledgers = find_ledgers(
        config.run_folders, leave_out=config.folders_left_out, data_id=config.data_id
    )
    runs, counted = without_counted([read_spent(folder) for folder in ledgers.folders])
    if not runs:
        raise InputError(
            "runs must contain a run that took a noisy step, got none in"
            f" {', '.join(config.run_folders)}.",
            key="runs",
            value=config.run_folders,
        )
    together = account_together(runs, delta=config.delta, accountant=config.accountant)
    costs = [(run, account_for_spent(run)) for run in runs]
    left_out = (*ledgers.left_out, *counted)
    return Answer(
        table=runs_table(costs, together, left_out),
        record=runs_record(costs, together, left_out),
    )


def runs_table(
    costs: Sequence[tuple[SpentRun, EpsilonBound]],
    together: EpsilonBound,
    left_out: Sequence[str] = (),
) -> str:
    """Return each run's own epsilon and that of all of them on the same data."""
    runs = [run for run, _ in costs]
    columns = f"{'steps':>10}{'noise':>12}{'sample rate':>13}{'own delta':>11}{'own epsilon':>13}"
    lines = [f"{columns}  {'by':<5}run"]
    for run, bound in costs:
        lines += _run_lines(run, bound)
    if together.epsilons:
        lines += ["", *accountant_lines(together.epsilons)]
    steps = f"{sum(run.steps for run in runs)} steps of {len(runs)} runs"
    lines += ["", _headline(together, steps, runs[0].plan.unit, SAMPLER)]
    notes = []
    bases = {(bound.accountant, bound.delta) for _, bound in costs}
    if bases != {(together.accountant, together.delta)}:
        notes.append(
            f"the epsilon of all is by {together.accountant} at delta ="
            f" {delta_text(together.delta)}; each run's own is at its own delta, by the accountant"
            " beside it, and compares to no other"
        )
    simple = simple_composition(costs)
    notes += [
        f"added up, each run's own: epsilon {eps_text(simple.epsilon)}, delta"
        f" {delta_text(simple.delta)}",
        f"ledgers counted: {len(runs)}; folders left out: {len(left_out)}",
    ]
    notes += [
        f"{run.folder}: its tokenizer, run {before.run_id}, is counted from its plan"
        for run, before in spent_beside(runs)
        if before is run.plan.tokenizer
    ]
    notes += [SAME_DATA, *_copies(runs)]
    data_ids = sorted({str(run.plan.data_id) for run in runs if run.plan.data_id is not None})
    if len(data_ids) > 1:
        notes.append(
            f"the plans name different data by privacy.data_id ({', '.join(data_ids)}), and all are"
            " counted as of the same; data_id=NAME leaves the others out"
        )
    lines += warning_lines(notes, label="note")
    lines += warning_lines(left_out, label="left out")
    for run, bound in costs:
        lines += warning_lines(f"{run.folder}: {warning}" for warning in bound.warnings)
    return "\n".join([*lines, *warning_lines(together.warnings)])


def _run_lines(run: SpentRun, bound: EpsilonBound) -> list[str]:
    """Return a line for each noise of a run; the first has its epsilon and its folder."""
    lines = []
    cost = f"{delta_text(bound.delta):>11}{eps_text(bound.epsilon):>13}"
    end = f"{cost}  {bound.accountant:<5}{run.folder}"
    for noise, steps in run.whole.items():
        values = f"{noise.noise_multiplier:>12.6g}{noise.sample_rate:>13.6g}"
        lines.append(f"{steps:>10}{values}{end}")
        end = ""
    return lines or [f"{0:>10}{'':>25}{end}"]


def _headline(bound: EpsilonBound, steps: str, unit: str, sampler: str) -> str:
    return headline_of(
        bound.epsilon,
        delta=bound.delta,
        accountant=bound.accountant,
        steps=steps,
        unit=unit,
        sampler=sampler,
    )


def _copies(runs: Sequence[SpentRun]) -> list[str]:
    """Return what to say of folders whose ledgers name one run: the steps they share count twice.

    A copy that went on has noise of its own, so it is not left out.
    """
    folders_of_id: dict[str, list[str]] = {}
    for run in runs:
        if run.ledger.run_id is not None:
            folders_of_id.setdefault(run.ledger.run_id, []).append(run.folder)
    return [
        f"{' and '.join(folders)} are copies of one run by their ledgers' first lines: the steps"
        " from before the copy was made are counted for each"
        for folders in folders_of_id.values()
        if len(folders) > 1
    ]


def simple_composition(costs: Sequence[tuple[SpentRun, EpsilonBound]]) -> SimpleComposition:
    """Return the sums of what each run reports by itself."""
    return SimpleComposition(
        epsilon=math.fsum(bound.epsilon for _, bound in costs),
        delta=math.fsum(bound.delta for _, bound in costs),
    )


def runs_record(
    costs: Sequence[tuple[SpentRun, EpsilonBound]],
    together: EpsilonBound,
    left_out: Sequence[str] = (),
) -> CostOfRuns:
    """Return the same as it is printed, each run's record under ``runs``."""
    runs = [run for run, _ in costs]
    # How the trainings among them drew units, where they did so alike.
    samplers = {run.plan.sampler for run in runs} - {NO_SAMPLING}
    sampler = samplers.pop() if len(samplers) == 1 else MIXED if samplers else NO_SAMPLING
    return CostOfRuns(
        **values_of(together, EpsilonBound),
        runs=tuple(run_record(run, bound) for run, bound in costs),
        private=not any(run.plan.reproducible for run in runs),
        sampler=sampler,
        simple_composition=simple_composition(costs),
        same_data=SAME_DATA,
        left_out=tuple(left_out),
        steps_taken=sum(run.steps for run in runs),
        unit=runs[0].plan.unit,
        neighboring_relation=runs[0].plan.neighboring_relation,
    )
