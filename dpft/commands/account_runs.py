"""``dpft account run=`` and ``runs=``: compute the privacy cost of runs from their ledgers.

The module ``account`` computes the cost of numbers from the command line instead.
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
"""Value of ``sampler`` if the runs sampled units in different ways."""
SAME_DATA = (
    "dpft cannot see which data a run was trained on: this epsilon holds if these runs, and no"
    " others, were trained on the same data"
)


class StepsOfNoise(Noise):
    """Number of steps with the same noise."""

    steps: AtLeastOne
    """Number of steps."""


class LedgerAsRead(LedgerHead):
    """State of a ledger when it was read."""

    run_id: RunId | None = None
    """Identifier of the run in the first line of the ledger, 32 hexadecimal digits."""
    closed: bool
    """Whether the last line is the closing line."""
    torn: bool
    """Whether the run was interrupted while it wrote a line."""
    end: str
    """Evidence that no step is missing at the end of the ledger; unproven without evidence."""
    head_checked: Literal[True] | None = None
    """True if the head of the ledger equals the value of ``head=``; absent without ``head=``."""


class RunCost(EpsilonBound, Versioned):
    """Privacy cost of a run according to its ledger."""

    run: str
    """Folder of the run, as given."""
    private: bool
    """Whether epsilon is a guarantee; false without noise or if the noise came from a test seed."""
    plan: Plan
    """Plan of the run, from the first line of the ledger."""
    mechanisms: tuple[StepsOfNoise, ...]
    """Number of steps for each kind of noise."""
    steps_taken: Count
    """Number of noisy steps in the accounting."""
    ledger: LedgerAsRead
    """State of the ledger when it was read."""


class SimpleComposition(StrictModel):
    """Sums of the values that the runs report individually."""

    epsilon: NotNegative
    """Sum of the epsilons."""
    delta: NotNegative
    """Sum of the deltas."""


class CostOfRuns(EpsilonBound, Versioned):
    """Total privacy cost of several runs on the same data."""

    runs: Annotated[tuple[RunCost, ...], Field(min_length=1)]
    """Cost of each run."""
    private: bool
    """Whether epsilon is a guarantee; false without noise or if the noise came from a test seed."""
    sampler: Sampler
    """How units were sampled."""
    unit: str
    """Privacy unit, whose contribution is hidden: example, chunk, or a column."""
    neighboring_relation: Relation
    """How neighboring datasets differ."""
    steps_taken: Count
    """Number of noisy steps of all runs."""
    simple_composition: SimpleComposition
    """Sums of the values that the runs report individually."""
    same_data: str
    """Statement that dpft cannot verify whether the runs share their data."""
    left_out: tuple[str, ...]
    """Skipped folders, each with the reason."""


def account_run(config: AccountConfig) -> Answer:
    """Return the privacy cost of the run that ``run=`` names.

    Raises:
        InputError: The folder is not the folder of a private run.
        StateError: The ledger is damaged, or its head differs from the given one.
    """
    assert config.run is not None
    run = read_spent_of_synthesis(config.run)
    head_checked = config.head is not None
    if config.head is not None:
        check_head(run, config.head)
        if run.ledger.closed:  # the head proves the end only after the closing line
            run = replace(run, end="head")
    bound = account_for_spent(run, delta=config.delta, accountant=config.accountant)
    return Answer(
        table=run_table(run, bound, head_checked=head_checked),
        record=run_record(run, bound, head_checked=head_checked),
    )


def run_table(run: SpentRun, bound: EpsilonBound, *, head_checked: bool) -> str:
    """Return a table of a run's ledger, its steps, the bound of each accountant and the headline.

    Args:
        run: The steps and the plan of the run.
        bound: The privacy cost of the steps.
        head_checked: Whether the head of the ledger was found equal to a given head.
    """
    plan, ledger = run.plan, run.ledger
    ledger_text = f"{ledger.lines} lines, closed"
    if not ledger.closed:
        torn = "" if ledger.torn_at is None else " and an incomplete one"
        ledger_text = f"{ledger.lines} lines{torn}, not closed: the run has not ended"
    rows = [
        ("run", run.folder),
        ("ledger", ledger_text),
        ("run id", str(ledger.run_id)),
        ("head", ledger.head),
    ]
    if head_checked:
        rows.append(("", "equals the given head"))
    proof = f"shown by {run.end}" if run.end else "unproven"
    if run.end == CLOSING_LINE:
        proof = f"shown only by the {run.end}, which the owner of the folder could have written"
    rows.append(("end", proof))
    for noise, steps in run.taken.items():
        threshold = ""
        if noise.threshold_delta:
            threshold = f", and a threshold that uses {noise.threshold_delta:.4g} of delta"
        text = f"{steps} of noise multiplier {noise.noise_multiplier:.6g}"
        rows.append(("steps", f"{text} at sample rate {noise.sample_rate:.6g}{threshold}"))
    num_composed = sum(run.taken.values())
    if num_composed != run.steps:
        rows[-1] = ("costs as", rows[-1][1])
    if plan.counts is not None:
        multiplier = plan.counts.mechanism.noise_multiplier
        text = f"1 of noise multiplier {multiplier:.6g}, run {plan.counts.run_id}"
        rows.append(("counts", f"{text}: the histogram of the synthesis, included in epsilon"))
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
        steps_taken += f"; each unit is in at most {num_composed} of them"
    lines += ["", _headline(bound, steps_taken, plan.unit, plan.sampler)]
    lines += warning_lines(bound.warnings)
    if bound.delta == plan.delta:
        notes = delta_notes(plan.num_examples, source=plan.delta_source)
        lines += warning_lines(notes, label="note")
    return "\n".join(lines)


def run_record(run: SpentRun, bound: EpsilonBound, *, head_checked: bool = False) -> RunCost:
    """Return the printed values as a record, without keys for unknown values."""
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
    """Return the total privacy cost of the runs that ``runs=`` names, and the cost of each run.

    Raises:
        InputError: A folder contains no run, no run took a step, or the runs protect different
            units.
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
    """Return a table of the epsilon of each run and of all runs on the same data."""
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
            f"the total epsilon is by {together.accountant} at delta ="
            f" {delta_text(together.delta)}. The epsilons of single runs have other deltas and"
            " accountants, so they are not comparable."
        )
    simple = simple_composition(costs)
    notes += [
        f"sums over the runs: epsilon {eps_text(simple.epsilon)}, delta {delta_text(simple.delta)}",
        f"ledgers counted: {len(runs)}; folders skipped: {len(left_out)}",
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
            f"the plans have different values of privacy.data_id ({', '.join(data_ids)}), but all"
            " are counted as training on the same records. data_id=NAME counts only these runs."
        )
    lines += warning_lines(notes, label="note")
    lines += warning_lines(left_out, label="skipped")
    for run, bound in costs:
        lines += warning_lines(f"{run.folder}: {warning}" for warning in bound.warnings)
    return "\n".join([*lines, *warning_lines(together.warnings)])


def _run_lines(run: SpentRun, bound: EpsilonBound) -> list[str]:
    """Return one line for each noise level of a run; the first shows its epsilon and folder."""
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
    """Return notes about folders that are copies of the same run, whose shared steps count twice.

    A copy may have been resumed and then has steps with its own noise, so no copy is skipped.
    """
    folders_of_id: dict[str, list[str]] = {}
    for run in runs:
        if run.ledger.run_id is not None:
            folders_of_id.setdefault(run.ledger.run_id, []).append(run.folder)
    return [
        f"{' and '.join(folders)} are copies of one run, because their ledgers have the same first"
        " line: steps from before the copy are counted once for each folder"
        for folders in folders_of_id.values()
        if len(folders) > 1
    ]


def simple_composition(costs: Sequence[tuple[SpentRun, EpsilonBound]]) -> SimpleComposition:
    """Return the sums of the values that the runs report individually."""
    return SimpleComposition(
        epsilon=math.fsum(bound.epsilon for _, bound in costs),
        delta=math.fsum(bound.delta for _, bound in costs),
    )


def runs_record(
    costs: Sequence[tuple[SpentRun, EpsilonBound]],
    together: EpsilonBound,
    left_out: Sequence[str] = (),
) -> CostOfRuns:
    """Return the printed values as a record, with the record of each run under ``runs``."""
    runs = [run for run, _ in costs]
    # A histogram samples nothing, so only the samplers of training runs count.
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
