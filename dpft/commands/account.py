"""``dpft account``: epsilon from noise, noise from epsilon, and what runs have spent.

Without ``run=`` or ``runs=`` no run is needed: the numbers come from the command line. With them
epsilon is rebuilt from the runs' ledgers. Each answer is a table for people and a record for
programs.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from dpft.commands.composition import (
    account_for_spent,
    account_together,
    check_head,
    check_same_unit,
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
from dpft.kinds import PUBLISHED
from dpft.privacy.accounting import (
    AccountingReport,
    EpsilonBound,
    SampledGaussian,
    account,
    calibrate_noise_multiplier,
)
from dpft.privacy.accounting.calibration import Calibration
from dpft.privacy.accounting.curve import epsilon_over_steps
from dpft.privacy.accounting.interpretation import noise_warnings
from dpft.privacy.accounting.summary import delta_text, eps_text
from dpft.privacy.ledger import LedgerHead, Noise
from dpft.privacy.mechanisms.base import Mechanism, Numbers
from dpft.privacy.plan import (
    EXAMPLE,
    GIVEN,
    NEIGHBORING_RELATION,
    NO_SAMPLING,
    SAMPLER,
    DeltaSource,
    Plan,
    PrivacyPlan,
    Relation,
    Sampler,
    default_delta,
    planned_steps,
)
from dpft.reports.epsilon import (
    accountant_lines,
    accounting_table,
    curve_table,
    delta_notes,
    delta_warnings,
    failure_notes,
    headline_of,
    plot_epsilon_over_steps,
    warning_lines,
)
from dpft.reports.terminal import Answer
from dpft.strict_model import (
    AtLeastOne,
    Count,
    NotNegative,
    Positive,
    RunId,
    StrictModel,
    Versioned,
    joined,
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


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The mechanism's public numbers, each given or derived."""

    num_examples: int | None
    expected_batch_size: float | None
    sample_rate: float
    steps: int
    delta: float
    delta_source: DeltaSource
    """``GIVEN``, or the rule that made delta of the number of examples."""
    mechanism: Mechanism
    """How draws and noise of the steps hang together."""

    def event(self, noise_multiplier: float) -> SampledGaussian:
        """Returns what accountants judge."""
        return SampledGaussian(
            noise_multiplier=noise_multiplier,
            sample_rate=self.mechanism.rate(self.sample_rate),
            steps=self.mechanism.compositions((self.steps,)),
            delta=self.delta,
        )


@dataclass(frozen=True, kw_only=True)
class Accounting:
    """What a setting costs, or what noise keeps it within a budget."""

    setting: Setting
    report: AccountingReport
    calibration: Calibration | None
    """What chose the noise; None where it was given."""
    warnings: tuple[str, ...]
    """What a reader must know of delta and of the noise, a sentence each."""
    curve: tuple[AccountingReport, ...] = ()
    """The same over growing numbers of steps, ascending, where that was asked for."""


def account_for_setting(config: AccountConfig) -> Accounting:
    """Returns the accounting of the numbers given, over steps too where ``curve`` is on.

    Raises:
        InputError: Too little is given, the batch is larger than the data, or the budget is out of
            reach.
    """
    setting = resolve(config)
    noise_multiplier, calibration = choose_noise(config, setting)
    mechanism = setting.event(noise_multiplier)
    leader = config.leader if calibration is None else calibration.accountant
    report = account(mechanism, accountant=leader)
    curve = epsilon_over_steps(mechanism, accountant=leader) if config.curve else []
    size = setting.num_examples
    warnings = delta_warnings(setting.delta, size, source=delta_source(config)) if size else []
    if setting.expected_batch_size is not None and not setting.mechanism.has_streams:
        warnings += noise_warnings(mechanism, expected_batch_size=setting.expected_batch_size)
    return Accounting(
        setting=setting,
        report=report,
        calibration=calibration,
        warnings=tuple(warnings),
        curve=tuple(curve),
    )


def resolve(config: AccountConfig) -> Setting:
    """Returns the numbers that follow from those given."""
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
    steps, delta = _steps(config, sample_rate), delta_of(config)
    expected = sample_rate * size if batch is None and size else batch
    numbers = Numbers(
        num_examples=size or 1,
        expected_batch_size=expected or sample_rate,
        steps=steps,
        delta=delta,
        eps=config.eps,
    )
    return Setting(
        num_examples=size,
        expected_batch_size=expected,
        sample_rate=sample_rate,
        steps=steps,
        delta=delta,
        delta_source=delta_source(config),
        mechanism=config.mechanism.choose(numbers),
    )


def choose_noise(config: AccountConfig, setting: Setting) -> tuple[float, Calibration | None]:
    """Returns the noise multiplier, and what chose it where eps was given."""
    if config.noise_multiplier is not None:
        return config.noise_multiplier, None
    assert config.eps is not None
    try:
        return calibrate_noise_multiplier(
            eps=config.eps,
            delta=setting.delta,
            sample_rate=setting.mechanism.rate(setting.sample_rate),
            steps=setting.mechanism.compositions((setting.steps,)),
            accountant=config.leader,
        )
    except InputError as error:  # its keys: this subcommand has no section for them
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
    """Returns delta, given or the papers' 1/(2 num_examples)."""
    if config.delta is not None:
        return config.delta
    return default_delta(_needed(config.num_examples, "no delta", "delta"), PUBLISHED)


def delta_source(config: AccountConfig) -> DeltaSource:
    """Returns whether delta was given, or that it is the papers'."""
    return PUBLISHED if config.delta is None else GIVEN


def _needed(num_examples: int | None, because: str, instead: str) -> int:
    if num_examples is None:
        raise InputError(
            f"num_examples must be given with {because}, got none; give it, or {instead} instead."
        )
    return num_examples


logger = logging.getLogger(__name__)


def answer(config: AccountConfig) -> Answer:
    """Returns what was asked; plots are drawn where ``to`` says so, warnings are logged.

    Raises:
        InputError: Too little is given, the budget is out of reach, or a run cannot be read.
        StateError: A run's ledger is damaged, or has another head than the one given.
    """
    if config.run is not None:
        return one_run(config)
    if config.runs is not None:
        found = find_ledgers(
            config.run_folders, leave_out=config.folders_left_out, data_id=config.data_id
        )
        runs, counted = without_counted([read_spent(folder) for folder in found.folders])
        if not runs:
            raise InputError(
                f"runs must hold a noisy step, got none in {', '.join(config.run_folders)}."
            )
        check_same_unit(runs)
        own = [account_for_spent(run) for run in runs]
        together = account_together(runs, delta=config.delta, accountant=config.accountant)
        pairs = list(zip(runs, own, strict=True))
        return Answer(
            table=together_table(pairs, together, (*found.left_out, *counted)),
            record=together_record(pairs, together, (*found.left_out, *counted)),
        )
    accounting = account_for_setting(config)
    if accounting.curve and config.to is not None:
        plot_epsilon_over_steps(accounting.curve, Path(config.to))
        logger.info("plot: %s", config.to)
    for warning in accounting.warnings:
        logger.warning(warning)
    return Answer(table=_table(accounting), record=_record(accounting))


def _record(accounting: Accounting) -> CostOfNumbers:
    report, setting, curve = accounting.report, accounting.setting, accounting.curve
    return joined(
        CostOfNumbers,
        report,
        delta_source=setting.delta_source,
        steps=setting.steps,
        num_examples=setting.num_examples,
        expected_batch_size=setting.expected_batch_size,
        sampler=setting.mechanism.sampler_name,
        calibration=accounting.calibration,
        warnings=(*report.warnings, *accounting.warnings, *failure_notes(curve)),
        curve=curve or None,
    )


def _table(accounting: Accounting) -> str:
    mechanism = accounting.setting.mechanism
    table = accounting_table(
        accounting.report,
        num_examples=accounting.setting.num_examples,
        expected_batch_size=accounting.setting.expected_batch_size,
        calibration=accounting.calibration,
        delta_source=accounting.setting.delta_source,
        steps=mechanism.in_words(accounting.setting.steps) if mechanism.has_streams else None,
        sampler=mechanism.sampler_name,
    )
    return f"{table}\n\n{curve_table(accounting.curve)}" if accounting.curve else table


MIXED: Final = "mixed"
"""The sampler of runs that drew units in several ways."""
SAME_DATA = (
    "dpft cannot see which data a run was trained on: this epsilon holds if these runs, and no"
    " others, were trained on the same data"
)


def run_table(run: SpentRun, spending: EpsilonBound, *, head_checked: bool) -> str:
    """Returns a run's ledger, its steps, every accountant's answer and the headline.

    Args:
        run: What its folder says.
        spending: What its steps cost.
        head_checked: Whether the ledger's head was found to be the one lodged elsewhere.
    """
    rows = [("run", run.folder), ("ledger", _ledger(run))]
    rows.append(("run id", str(run.ledger.run_id)))
    rows.append(("head", run.ledger.head))
    if head_checked:
        rows.append(("", "is the head that was given"))
    shown = f"shown by {run.end}" if run.end else "unproven"
    if run.end == CLOSING_LINE:
        shown = f"shown by the {run.end} alone, which whoever owns the folder can write"
    rows.append(("end", shown))
    for each, steps in run.taken.items():
        words = f"{steps} of noise multiplier {each.noise_multiplier:.6g}"
        taken = each.threshold_delta
        beside = f", and a threshold that takes {taken:.4g} of delta" if taken else ""
        rows.append(("steps", f"{words} at sample rate {each.sample_rate:.6g}{beside}"))
    if sum(run.taken.values()) != run.steps:
        rows[-1] = ("costs as", rows[-1][1])
    if run.plan.counts is not None:
        noise = run.plan.counts.mechanism.noise_multiplier
        words = f"1 of noise multiplier {noise:.6g}, run {run.plan.counts.run_id}"
        rows.append(("counts", f"{words}: the histogram of its synthesis, in epsilon too"))
    rows += [
        ("batch", f"{run.plan.expected_batch_size:g} expected"),
        ("units", f"{run.plan.num_examples} (taken as public)"),
        ("delta", delta_text(spending.delta)),
    ]
    lines = [f"{label:<10}{value}" for label, value in rows]
    if spending.epsilons:
        lines += ["", *accountant_lines(spending.epsilons)]
    taken_of = f"{run.steps} steps taken of {run.plan.steps} planned"
    counted = sum(run.taken.values())
    if isinstance(run.plan, PrivacyPlan) and run.plan.mechanism.has_streams:
        taken_of += f", of which a unit is in {counted} at most"
    headline = _headline_of_runs(spending, taken_of, run.plan.unit, run.plan.sampler)
    lines += ["", headline, *warning_lines(spending.warnings)]
    notes = []
    if spending.delta == run.plan.delta:
        notes = delta_notes(run.plan.num_examples, source=run.plan.delta_source)
    return "\n".join([*lines, *warning_lines(notes, label="note")])


def run_record(run: SpentRun, spending: EpsilonBound, *, head_checked: bool = False) -> RunCost:
    """Returns the same as it is printed; what is not known has no key."""
    ledger = run.ledger
    return RunCost(
        run=run.folder,
        private=not run.plan.reproducible,
        epsilon=spending.epsilon,
        delta=spending.delta,
        accountant=spending.accountant,
        epsilons=spending.epsilons,
        warnings=spending.warnings,
        plan=run.plan,
        mechanisms=tuple(
            joined(StepsOfNoise, noise, steps=steps) for noise, steps in run.whole.items()
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


def together_table(
    runs: Sequence[tuple[SpentRun, EpsilonBound]],
    together: EpsilonBound,
    left_out: Sequence[str] = (),
) -> str:
    """Returns each run's own epsilon and that of all of them on the same data."""
    columns = f"{'steps':>10}{'noise':>12}{'sample rate':>13}{'own delta':>11}{'own epsilon':>13}"
    lines = [f"{columns}  {'by':<5}run"]
    for run, own in runs:
        lines += _run_lines(run, own)
    if together.epsilons:
        lines += ["", *accountant_lines(together.epsilons)]
    steps = f"{sum(run.steps for run, _ in runs)} steps of {len(runs)} runs"
    lines += ["", _headline_of_runs(together, steps, runs[0][0].plan.unit)]
    added = _added_up(runs)
    apart = (
        f"the epsilon of all is by {together.accountant} at delta = {delta_text(together.delta)};"
        " each run's own is at its own delta, by the accountant beside it, and compares to no other"
    )
    simple = f"added up, each run's own: epsilon {eps_text(added.epsilon)}, delta"
    notes = [f"{simple} {delta_text(added.delta)}"]
    if {(own.accountant, own.delta) for _, own in runs} != {(together.accountant, together.delta)}:
        notes = [apart, *notes]
    lines += warning_lines(notes, label="note")
    found = [f"ledgers counted: {len(runs)}; folders left out: {len(left_out)}"]
    also = [
        f"{run.folder}: its tokenizer, run {before.run_id}, is counted from its plan"
        for run, before in spent_beside([run for run, _ in runs])
        if before is run.plan.tokenizer
    ]
    notes = [*found, *also, SAME_DATA, *_copies(runs)]
    names = sorted({str(run.plan.data_id) for run, _ in runs if run.plan.data_id is not None})
    if len(names) > 1:
        notes.append(
            f"the plans name different data by privacy.data_id ({', '.join(names)}), and all are"
            " counted as of the same; data_id=NAME leaves the others out"
        )
    lines += warning_lines(notes, label="note")
    lines += warning_lines(left_out, label="left out")
    for run, own in runs:
        lines += warning_lines(f"{run.folder}: {warning}" for warning in own.warnings)
    return "\n".join([*lines, *warning_lines(together.warnings)])


def together_record(
    runs: Sequence[tuple[SpentRun, EpsilonBound]],
    together: EpsilonBound,
    left_out: Sequence[str] = (),
) -> CostOfRuns:
    """Returns the same as it is printed, each run's record under ``runs``."""
    first, _ = runs[0]
    # How the trainings among them drew units, where they did so alike.
    samplers = {run.plan.sampler for run, _ in runs} - {NO_SAMPLING}
    sampler = samplers.pop() if len(samplers) == 1 else MIXED if samplers else NO_SAMPLING
    return CostOfRuns(
        runs=tuple(run_record(run, own) for run, own in runs),
        private=not any(run.plan.reproducible for run, _ in runs),
        epsilon=together.epsilon,
        delta=together.delta,
        accountant=together.accountant,
        epsilons=together.epsilons,
        warnings=together.warnings,
        sampler=sampler,
        simple_composition=_added_up(runs),
        same_data=SAME_DATA,
        left_out=tuple(left_out),
        steps_taken=sum(run.steps for run, _ in runs),
        unit=first.plan.unit,
        neighboring_relation=first.plan.neighboring_relation,
    )


def _copies(runs: Sequence[tuple[SpentRun, EpsilonBound]]) -> list[str]:
    """Returns what to say of folders whose ledgers name one run: the steps they share count twice.

    A copy that went on has noise of its own, so it is not left out.
    """
    named: dict[str, list[str]] = {}
    for run, _ in runs:
        if run.ledger.run_id is not None:
            named.setdefault(run.ledger.run_id, []).append(run.folder)
    return [
        f"{' and '.join(folders)} are copies of one run by their ledgers' first lines: the steps"
        " from before the copy was made are counted for each"
        for folders in named.values()
        if len(folders) > 1
    ]


def _added_up(runs: Sequence[tuple[SpentRun, EpsilonBound]]) -> SimpleComposition:
    """Returns the sums of what each run reports by itself."""
    return SimpleComposition(
        epsilon=math.fsum(own.epsilon for _, own in runs),
        delta=math.fsum(own.delta for _, own in runs),
    )


def _headline_of_runs(spending: EpsilonBound, steps: str, unit: str, sampler: str = SAMPLER) -> str:
    return headline_of(
        spending.epsilon,
        delta=spending.delta,
        accountant=spending.accountant,
        steps=steps,
        unit=unit,
        sampler=sampler,
    )


def _ledger(run: SpentRun) -> str:
    ledger = run.ledger
    if ledger.closed:
        return f"{ledger.lines} lines, closed"
    torn = "" if ledger.torn_at is None else " and a torn one"
    return f"{ledger.lines} lines{torn}, not closed: the run has not ended"


def _run_lines(run: SpentRun, own: EpsilonBound) -> list[str]:
    """Returns a line for each noise of a run; the first has its epsilon and its folder."""
    lines = []
    spent = f"{delta_text(own.delta):>11}{eps_text(own.epsilon):>13}"
    end = f"{spent}  {own.accountant:<5}{run.folder}"
    for noise, steps in run.whole.items():
        values = f"{noise.noise_multiplier:>12.6g}{noise.sample_rate:>13.6g}"
        lines.append(f"{steps:>10}{values}{end}")
        end = ""
    return lines or [f"{0:>10}{'':>25}{end}"]


def one_run(config: AccountConfig) -> Answer:
    """Returns what ``run=`` asks for.

    Raises:
        InputError: It is no private run's folder.
        StateError: Its ledger is damaged, or has another head than the one given.
    """
    assert config.run is not None
    run = read_spent_of_synthesis(config.run)
    if config.head is not None:
        check_head(run, config.head)
        if run.ledger.closed:  # a head says nothing of lines behind it, unless it is the last
            run = replace(run, end="head")
    spending = account_for_spent(run, delta=config.delta, accountant=config.accountant)
    checked = config.head is not None
    return Answer(
        table=run_table(run, spending, head_checked=checked),
        record=run_record(run, spending, head_checked=checked),
    )
