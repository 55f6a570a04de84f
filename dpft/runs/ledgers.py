"""``dpft account run=`` and ``runs=``: epsilon rebuilt from ledgers, as tables and as JSON."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dpft.config.account import AccountConfig
from dpft.errors import InputError
from dpft.privacy.accounting import Accountants, EpsilonBound
from dpft.privacy.accounting.summary import delta_text, eps_text
from dpft.privacy.plan import NO_SAMPLING, SAMPLER, PrivacyPlan
from dpft.privacy.spending import Noise
from dpft.privacy.witness import check_witnessed
from dpft.records.costs import CostOfRuns, LedgerAsRead, RunCost, SimpleComposition, StepsOfNoise
from dpft.reports.epsilon import (
    accountant_lines,
    delta_notes,
    headline_of,
    warning_lines,
)
from dpft.reports.terminal import Answer
from dpft.runs.composition import (
    account_for_spent,
    account_together,
    check_head,
    check_same_unit,
    tokenizers_beside,
)
from dpft.runs.saved_run import CLOSING_LINE, SpentRun, find_ledgers, read_spent

MIXED = "mixed"
"""The sampler of runs that drew units in several ways."""
SAME_DATA = (
    "dpft cannot see which data a run was trained on: this epsilon holds if these runs, and no"
    " others, were trained on the same data"
)


def run_table(
    run: SpentRun, spending: EpsilonBound, *, head_checked: bool, witnessed_lines: int | None = None
) -> str:
    """Returns a run's ledger, its steps, every accountant's answer and the headline.

    Args:
        run: What its folder says.
        spending: What its steps cost.
        head_checked: Whether the ledger's head was found to be the one lodged elsewhere.
        witnessed_lines: Lines of the ledger that a witness has a head of; None: none was asked.
    """
    rows = [("run", run.folder), ("ledger", _ledger(run))]
    rows.append(("run id", str(run.ledger.run_id)))
    rows.append(("head", run.ledger.head))
    if head_checked:
        rows.append(("", "is the head that was given"))
    if witnessed_lines is not None:
        rows.append(("witness", f"has the head after line {witnessed_lines}, as it is here"))
    rows.append(("end", _end_in_words(run.end)))
    rows += [row for noise, steps in run.taken.items() for row in _noise_rows(noise, steps)]
    if sum(run.taken.values()) != run.steps:
        rows[-1] = ("costs as", rows[-1][1])
    rows += [
        ("batch", f"{run.plan.expected_batch_size:g} expected"),
        ("units", f"{run.plan.num_examples} (taken as public)"),
        ("delta", delta_text(spending.delta)),
    ]
    lines = [f"{label:<10}{value}" for label, value in rows]
    if spending.epsilons:
        lines += ["", *accountant_lines(spending.epsilons)]
    steps = f"{run.steps} steps taken of {run.plan.steps} planned"
    counted = sum(run.taken.values())
    if isinstance(run.plan, PrivacyPlan) and run.plan.mechanism.has_streams:
        steps += f", of which a unit is in {counted} at most"
    headline = _headline(spending, steps, run.plan.unit, run.plan.sampler)
    lines += ["", headline, *warning_lines(spending.warnings)]
    notes = []
    if spending.delta == run.plan.delta:
        notes = delta_notes(run.plan.num_examples, source=run.plan.delta_source)
    return "\n".join([*lines, *warning_lines(notes, label="note")])


def _end_in_words(end: str | None) -> str:
    if end == CLOSING_LINE:
        return f"shown by the {end} alone, which whoever owns the folder can write"
    return f"shown by {end}" if end else "unproven"


def run_record(
    run: SpentRun,
    spending: EpsilonBound,
    *,
    head_checked: bool = False,
    witnessed_lines: int | None = None,
) -> RunCost:
    """Returns the same as it is printed; what is not known has no key."""
    noises, plan, ledger = list(run.taken), run.plan, run.ledger
    only = noises[0] if len(noises) == 1 else None
    return RunCost(
        run=run.folder,
        private=not plan.reproducible,
        epsilon=spending.epsilon,
        delta=spending.delta,
        accountant=spending.accountant,
        epsilons=spending.epsilons,
        warnings=tuple(spending.warnings),
        sampler=plan.sampler,
        reproducible=plan.reproducible or None,
        noise_multiplier=None if only is None else only.noise_multiplier,
        sample_rate=None if only is None else only.sample_rate,
        mechanisms=tuple(
            StepsOfNoise(
                noise_multiplier=noise.noise_multiplier,
                sample_rate=noise.sample_rate,
                steps=steps,
                threshold_delta=noise.threshold_delta or None,
            )
            for noise, steps in run.taken.items()
        ),
        num_examples=plan.num_examples,
        expected_batch_size=plan.expected_batch_size,
        steps=plan.steps,
        steps_taken=run.steps,
        unit=plan.unit,
        unit_definition=plan.unit_definition,
        neighboring_relation=plan.neighboring_relation,
        ledger=LedgerAsRead(
            run_id=ledger.run_id,
            lines=ledger.lines,
            head=ledger.head,
            closed=ledger.closed,
            torn=ledger.torn_at is not None,
            end=run.end or "unproven",
            head_checked=head_checked or None,
            witnessed_lines=witnessed_lines,
        ),
    )


def together_table(
    runs: Sequence[tuple[SpentRun, EpsilonBound]],
    together: EpsilonBound,
    left_out: Sequence[str] = (),
) -> str:
    """Returns each run's own epsilon and that of all of them on the same data.

    Args:
        runs: What each one's ledger says, and what it cost by itself.
        together: What all cost.
        left_out: Why other folders are not among them.
    """
    columns = f"{'steps':>10}{'noise':>12}{'sample rate':>13}{'own delta':>11}{'own epsilon':>13}"
    lines = [f"{columns}  {'by':<5}run"]
    for run, own in runs:
        lines += _run_lines(run, own)
    if together.epsilons:
        lines += ["", *accountant_lines(together.epsilons)]
    steps = f"{sum(run.steps for run, _ in runs)} steps of {len(runs)} runs"
    lines += ["", _headline(together, steps, runs[0][0].plan.unit)]
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
        f"{run.folder}: its tokenizer, run {run.plan.tokenizer.run_id}, is counted from its plan"
        for run in tokenizers_beside([run for run, _ in runs])
        if run.plan.tokenizer is not None
    ]
    notes = [*found, *also, SAME_DATA, *_copies(runs), *_data_ids(runs)]
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
    return CostOfRuns(
        runs=tuple(run_record(run, own) for run, own in runs),
        private=not any(run.plan.reproducible for run, _ in runs),
        epsilon=together.epsilon,
        delta=together.delta,
        accountant=together.accountant,
        epsilons=together.epsilons,
        warnings=tuple(together.warnings),
        sampler=_sampler_of([run for run, _ in runs]),
        simple_composition=_added_up(runs),
        same_data=SAME_DATA,
        left_out=tuple(left_out),
        steps_taken=sum(run.steps for run, _ in runs),
        unit=first.plan.unit,
        neighboring_relation=first.plan.neighboring_relation,
    )


def _data_ids(runs: Sequence[tuple[SpentRun, EpsilonBound]]) -> list[str]:
    """Returns what to say of runs whose plans name different data."""
    names = sorted({str(run.plan.data_id) for run, _ in runs if run.plan.data_id is not None})
    if len(names) < 2:
        return []
    return [
        f"the plans name different data by privacy.data_id ({', '.join(names)}), and all are"
        " counted as of the same; data_id=NAME leaves the others out"
    ]


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


def _sampler_of(runs: Sequence[SpentRun]) -> str:
    """Returns how the trainings among some runs drew units, where they did so alike."""
    samplers = {run.plan.sampler for run in runs if run.plan.sampler != NO_SAMPLING}
    return samplers.pop() if len(samplers) == 1 else MIXED if samplers else NO_SAMPLING


def _added_up(runs: Sequence[tuple[SpentRun, EpsilonBound]]) -> SimpleComposition:
    """Returns the sums of what each run reports by itself."""
    return SimpleComposition(
        epsilon=math.fsum(own.epsilon for _, own in runs),
        delta=math.fsum(own.delta for _, own in runs),
    )


def _headline(spending: EpsilonBound, steps: str, unit: str, sampler: str = SAMPLER) -> str:
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


def _noise_rows(noise: Noise, steps: int) -> list[tuple[str, str]]:
    return [
        (
            "steps",
            f"{steps} of noise multiplier {noise.noise_multiplier:.6g}"
            f" at sample rate {noise.sample_rate:.6g}{_threshold_words(noise)}",
        )
    ]


def _threshold_words(noise: Noise) -> str:
    taken = noise.threshold_delta
    return f", and a threshold that takes {taken:.4g} of delta" if taken else ""


def _run_lines(run: SpentRun, own: EpsilonBound) -> list[str]:
    """Returns a line for each noise of a run; the first has its epsilon and its folder."""
    lines = []
    spent = f"{delta_text(own.delta):>11}{eps_text(own.epsilon):>13}"
    end = f"{spent}  {own.accountant:<5}{run.folder}"
    for noise, steps in run.taken.items():
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
    run = read_spent(config.run)
    run, witnessed = _with_its_end(config, run)
    with Accountants() as accountants:
        spending = account_for_spent(
            run, delta=config.delta, accountant=config.accountant, accountants=accountants
        )
    checked = config.head is not None
    return Answer(
        table=run_table(run, spending, head_checked=checked, witnessed_lines=witnessed),
        record=run_record(run, spending, head_checked=checked, witnessed_lines=witnessed),
    )


def _with_its_end(config: AccountConfig, run: SpentRun) -> tuple[SpentRun, int | None]:
    """Returns the run, with what was lodged elsewhere showing its end, and its witnessed lines.

    A head shows the lines before it and nothing of those behind it, unless it is the closing one's.

    Raises:
        InputError: The witness is not of this run.
        StateError: The ledger is not the one that was lodged.
    """
    witnessed = None
    if config.witness is not None:
        witnessed = check_witnessed(run.ledger, Path(run.folder), Path(config.witness))
        if run.ledger.closed and witnessed == run.ledger.lines:
            run = replace(run, end="witness")
    if config.head is not None:
        check_head(run, config.head)
        if run.ledger.closed:
            run = replace(run, end="head")
    return run, witnessed


def several_runs(config: AccountConfig) -> Answer:
    """Returns what ``runs=`` asks for.

    Raises:
        InputError: They are no private runs, one is named twice, or they differ in their unit.
        StateError: A ledger is damaged.
    """
    found = find_ledgers(
        config.run_folders, leave_out=config.folders_left_out, data_id=config.data_id
    )
    runs = [read_spent(folder) for folder in found.folders]
    if not runs:
        raise InputError(
            f"runs must hold a noisy step, got none in {', '.join(config.run_folders)}."
        )
    check_same_unit(runs)
    with Accountants() as accountants:
        own = [account_for_spent(run, accountants=accountants) for run in runs]
        together = account_together(
            runs, delta=config.delta, accountant=config.accountant, accountants=accountants
        )
    pairs = list(zip(runs, own, strict=True))
    return Answer(
        table=together_table(pairs, together, found.left_out),
        record=together_record(pairs, together, found.left_out),
    )
