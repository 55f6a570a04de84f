"""The accounting of runs from their ledgers: one run, or several on the same data."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dpft.errors import InputError, StateError
from dpft.privacy.accounting import Accountants, EpsilonBound, account, account_composition
from dpft.privacy.accounting.mechanism import Composition, SampledGaussian
from dpft.privacy.plan import EXAMPLE, GIVEN
from dpft.privacy.spending import Noise, as_mechanisms, thresholds_delta
from dpft.reports.accounting.epsilon import NOT_PRIVATE_SEED, delta_warnings
from dpft.run_folder import JOURNAL, PRIVACY
from dpft.runs.spending.spent_run import SpentRun

END_UNPROVEN = (
    "the ledger's end is unproven: it is not closed, and without private/ nothing shows whether"
    " steps were cut from its end; epsilon is that of the steps it holds. Give head=HASH or"
    " witness=FILE, as they were lodged elsewhere."
)
AGREE = 1e-3
"""Most by which a stated epsilon may differ from the same accountant's answer here."""
UNNAMED = (
    "the ledger names no run, as those of dpft 0.2.0 and before: another run of the same plan has"
    " the same head."
)


def account_for_spent(
    run: SpentRun,
    *,
    delta: float | None = None,
    accountant: str | None = None,
    accountants: Accountants,
) -> EpsilonBound:
    """Returns what a run's ledger cost, computed of its lines.

    What privacy.json states never takes its place: only whose bound leads is taken from there, and
    every accountant that may lead proves an upper bound.

    Args:
        run: What its folder says.
        delta: In place of the run's own.
        accountant: In place of the one that led the run's own accounting.
        accountants: Running accountants.

    Raises:
        InputError: ``delta`` is out of range, or no accountant can bound the steps.
    """
    at = run.delta if delta is None else delta
    stated = run.stated if at == run.delta and accountant is None else None
    leader = accountant or (stated[1] if stated else run.accountant)
    bound = account_taken(run.taken, at, leader, accountants)
    source = run.delta_source if delta is None else GIVEN
    warnings = _notes(run) + delta_warnings(at, run.num_examples, source=source)
    if stated is not None:
        warnings = _not_found(bound, *stated) + warnings
    return replace(bound, warnings=(*bound.warnings, *warnings))


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
    taken: Counter[Noise] = Counter()
    for run in runs:
        taken.update(run.taken)
    at = default_together(runs) if delta is None else delta
    return _compose(dict(sorted(taken.items())), at, accountant or "pld", accountants)


def default_together(runs: Sequence[SpentRun]) -> float:
    """Returns the delta at which runs are composed: the smallest of theirs.

    A tokenizer's comes on top, since half of it goes to its threshold, whatever the others have.
    """
    tokenizers = [run.delta for run in runs if thresholds_delta(run.taken)]
    others = [run.delta for run in runs if not thresholds_delta(run.taken)]
    return math.fsum([*tokenizers, *([min(others)] if others else [])])


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
        definitions = (first.unit_definition, run.unit_definition)
        if first.unit == EXAMPLE and None not in definitions:
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
    expected, got = getattr(first, name), getattr(other, name)
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


def _not_found(bound: EpsilonBound, epsilon: float, accountant: str) -> list[str]:
    """Returns what to say of a stated epsilon that is not found here, without showing it."""
    if bound.accountant != accountant:
        return [
            f"{PRIVACY} states an epsilon by {accountant}, which has no answer here, so that"
            f" nothing bears it out; this one is of {bound.accountant}."
        ]
    if abs(bound.epsilon - epsilon) > AGREE * max(1.0, bound.epsilon):
        return [
            f"{PRIVACY} states another epsilon than {accountant} finds of the ledger's steps: do"
            " not rely on it, nor on a report that does."
        ]
    return []


def _notes(run: SpentRun) -> list[str]:
    """Returns what the ledger's end and the configuration say beside the number."""
    notes = [NOT_PRIVATE_SEED] if run.reproducible else []
    if run.tokenizer is not None:
        notes.append(
            "epsilon is of the training alone, without what its tokenizer cost"
            f" (model.tokenizer={run.tokenizer}): dpft account runs=[{run.tokenizer},{run.folder}]"
            " composes both."
        )
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
    if run.ledger.lines and run.ledger.run_id is None:
        notes.append(UNNAMED)
    if run.end is None:
        notes.append(END_UNPROVEN)
    if not run.ledger.closed:
        notes.append(
            f"the run has not ended: {run.steps} steps are counted, of {run.planned_steps} planned."
        )
    elif run.steps > run.planned_steps:
        notes.append(
            f"{run.steps} steps are counted, of {run.planned_steps} planned: the run broke off, and"
            " some were taken again with new noise."
        )
    return notes
