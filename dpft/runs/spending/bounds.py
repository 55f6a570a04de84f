"""The accounting of runs from their ledgers: one run, or several on the same data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dpft.errors import InputError, StateError
from dpft.privacy.accounting import Accountants, EpsilonBound, account, account_composition
from dpft.privacy.accounting.mechanism import Composition, SampledGaussian
from dpft.privacy.accounting.rounding import delta_up, up
from dpft.privacy.plan import EXAMPLE, GIVEN
from dpft.privacy.spending import Noise, added_up, as_mechanisms, thresholds_delta
from dpft.reports.accounting.epsilon import NOT_PRIVATE_SEED, delta_warnings
from dpft.run_folder import JOURNAL
from dpft.runs.spending.spent_run import SpentRun

END_UNPROVEN = (
    "the ledger's end is unproven: it is not closed, and without private/ nothing shows whether"
    " steps were cut from its end; epsilon is that of the steps it holds. Give head=HASH or"
    " witness=FILE, as they were lodged elsewhere."
)


def account_for_spent(
    run: SpentRun,
    *,
    delta: float | None = None,
    accountant: str | None = None,
    accountants: Accountants,
) -> EpsilonBound:
    """Returns what a run's ledger cost, computed of its lines.

    Delta, and whose bound leads, are those of the plan in the ledger's first line; what other files
    of the run say never takes their place.

    Args:
        run: What its folder says.
        delta: In place of the run's own.
        accountant: In place of the one that led the run's own accounting.
        accountants: Running accountants.

    Raises:
        InputError: ``delta`` is out of range, or no accountant can bound the steps.
    """
    plan = run.plan
    at = plan.delta if delta is None else delta
    calibration = plan.calibration
    led = plan.accountant if calibration is None else calibration.accountant
    bound = account_taken(run.taken, at, accountant or led, accountants)
    source = plan.delta_source if delta is None else GIVEN
    warnings = _notes(run) + delta_warnings(at, plan.num_examples, source=source)
    if plan.tokenizer is not None:
        warnings.append(_with_tokenizer(run, at, accountants))
    return replace(bound, warnings=(*bound.warnings, *warnings))


def _with_tokenizer(run: SpentRun, delta: float, accountants: Accountants) -> str:
    before = run.plan.tokenizer
    assert before is not None
    at = math.fsum([delta, before.delta])
    both = account_taken(added_up(run.taken, run.tokenizer_taken), at, "pld", accountants)
    return (
        "epsilon is of the training alone; with its tokenizer, which the same records made,"
        f" epsilon = {up(both.epsilon)} (upper bound by {both.accountant}) at delta ="
        f" {delta_up(at)}."
    )


def account_together(
    runs: Sequence[SpentRun],
    *,
    delta: float | None = None,
    accountant: str | None = None,
    accountants: Accountants,
) -> EpsilonBound:
    """Returns what several runs on the same data cost together, by PLD, else RDP.

    Args:
        runs: What their folders say.
        delta: At which the bound shall hold; None: ``default_together``.
        accountant: "rdp" leads in place of "pld".
        accountants: Running accountants.

    Raises:
        InputError: The runs do not protect the same unit, or no accountant can bound them.
    """
    check_same_unit(runs)
    beside = [run.tokenizer_taken for run in tokenizers_beside(runs)]
    taken = added_up(*(run.taken for run in runs), *beside)
    at = default_together(runs) if delta is None else delta
    return _compose(taken, at, accountant or "pld", accountants)


def default_together(runs: Sequence[SpentRun]) -> float:
    """Returns the delta at which runs are composed: the smallest of theirs.

    A tokenizer's comes on top, since half of it goes to its threshold, whatever the others have.
    """
    tokenizers = [run.plan.delta for run in runs if thresholds_delta(run.taken)]
    tokenizers += [run.plan.tokenizer.delta for run in tokenizers_beside(runs)]  # type: ignore[union-attr]
    others = [run.plan.delta for run in runs if not thresholds_delta(run.taken)]
    return math.fsum([*tokenizers, *([min(others)] if others else [])])


def tokenizers_beside(runs: Sequence[SpentRun]) -> list[SpentRun]:
    """Returns runs whose tokenizer adds to their cost and is no run among them, one for each.

    Raises:
        StateError: A run among them has the tokenizer's name, and not the ledger that the plan has.
    """
    here = {run.ledger.run_id: run for run in runs}
    beside: dict[str, SpentRun] = {}
    for run in runs:
        before = run.plan.tokenizer
        if before is None:
            continue
        named = here.get(before.run_id)
        if named is None:
            beside.setdefault(before.run_id, run)
        elif named.ledger.heads[before.lines : before.lines + 1] != (before.head,):
            raise StateError(
                f"the ledger of {named.folder} must have the head {before.head} after line"
                f" {before.lines}, as the plan of {run.folder} has it, got another; it was cut or"
                " replaced. Put it back as it was."
            )
    return list(beside.values())


def check_same_unit(runs: Sequence[SpentRun]) -> None:
    """Refuses runs whose epsilons protect different things.

    Raises:
        InputError: Their unit or neighboring relation differs.
    """
    first = runs[0]
    for run in runs[1:]:
        for name in ("unit", "neighboring_relation"):
            _same(name, first, run)
        # A named unit is the same one whatever number of its records is trained on.
        definitions = (first.plan.unit_definition, run.plan.unit_definition)
        if first.plan.unit == EXAMPLE and None not in definitions:
            _same("unit_definition", first, run)


def check_head(run: SpentRun, head: str) -> None:
    """Refuses a ledger whose head is not the one that was lodged elsewhere.

    Raises:
        StateError: It is another one.
    """
    ledger = run.ledger
    if ledger.head == head:
        return
    went_on = (
        f"; the one given was its head after line {ledger.heads.index(head)}"
        if head in ledger.heads
        else "; it was replaced or written anew, or the head is of another run"
    )
    raise StateError(
        f"the ledger of {run.folder} must have the head {head}, got {ledger.head}{went_on}."
    )


def _same(name: str, first: SpentRun, other: SpentRun) -> None:
    expected, got = getattr(first.plan, name), getattr(other.plan, name)
    if expected != got:
        raise InputError(
            f"runs must all have the same {name}, got {expected!r} in {first.folder} and {got!r} in"
            f" {other.folder}; their epsilons protect different things, so compose them apart."
        )


def account_taken(
    taken: Mapping[Noise, int], delta: float, leader: str, accountants: Accountants
) -> EpsilonBound:
    """Returns what noisy steps cost at ``delta``, of which thresholds take theirs.

    Args:
        taken: How many there are of each noise.
        delta: Of all of it.
        leader: The accountant whose bound should lead.
        accountants: Running accountants.

    Raises:
        InputError: ``delta`` is out of range, or no accountant can bound the steps.
    """
    if len(taken) != 1:
        return _compose(taken, delta, leader, accountants)
    (mechanism,) = as_mechanisms(taken, delta)
    return _at(account(mechanism, accountant=leader, accountants=accountants), delta)


def _compose(
    taken: Mapping[Noise, int], delta: float, leader: str, accountants: Accountants
) -> EpsilonBound:
    parts = as_mechanisms(taken, delta)
    if not parts:
        SampledGaussian(noise_multiplier=1, sample_rate=1, steps=1, delta=delta)  # checks delta
        none = "no noisy step is in the ledger, so nothing was spent."
        return EpsilonBound(
            epsilon=0.0, delta=delta, accountant="rdp", epsilons={}, warnings=(none,)
        )
    composition = Composition(parts=parts)
    return _at(account_composition(composition, accountant=leader, accountants=accountants), delta)


def _at(bound: EpsilonBound, delta: float) -> EpsilonBound:
    """Returns the bound with the delta of all, what goes to thresholds included."""
    return replace(bound, delta=delta)


def _notes(run: SpentRun) -> list[str]:
    """Returns what the ledger's end and the configuration say beside the number."""
    notes = [NOT_PRIVATE_SEED] if run.plan.reproducible else []
    notes += [
        f"{difference}; epsilon is computed of the ledger, whatever that file says."
        for difference in run.differences
    ]
    if run.ledger.torn_step:
        notes.append(
            "the last line of the ledger is torn: the run broke off while it was written, and its"
            " step is counted."
        )
    elif run.ledger.journaled_step:
        notes.append(
            f"{JOURNAL} has one step more than the ledger: the run broke off before its"
            " line was written, or the line was cut, and it is counted."
        )
    if run.end is None:
        notes.append(END_UNPROVEN)
    if not run.ledger.closed:
        notes.append(
            f"the run has not ended: {run.steps} steps are counted, of {run.plan.steps} planned."
        )
    elif run.steps > run.plan.steps:
        notes.append(
            f"{run.steps} steps are counted, of {run.plan.steps} planned: the run broke off, and"
            " some were taken again with new noise."
        )
    return notes
