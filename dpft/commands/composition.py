"""Composition of the privacy cost of several runs, and of a run with its tokenizer.

Ponomareva et al. 2022, Appendix C, adds the epsilon of a private tokenizer to the epsilon of
training. The composition here is tighter. PLD composes the Gaussian mechanism of the tokenizer's
histogram with the sampled Gaussian mechanisms of training, at the sum of both deltas. Half of the
tokenizer's delta is first reserved for the threshold of the histogram. Importing this module does
not import torch.
"""

import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from dpft.commands.ledger_account import SpentRun, histogram_steps, read_spent
from dpft.config.schema import TrainConfig
from dpft.errors import InputError, StateError
from dpft.privacy.accounting import EpsilonBound, account, account_composition, evaluate
from dpft.privacy.accounting.calibration import smallest_noise
from dpft.privacy.accounting.mechanism import AccountantError, Composition, SampledGaussian
from dpft.privacy.accounting.summary import delta_text, eps_text
from dpft.privacy.ledger import LedgerHead, Noise, as_mechanisms, sum_steps, thresholds_delta
from dpft.privacy.mechanisms.histogram import Histogram
from dpft.privacy.plan import EXAMPLE, GIVEN, NEIGHBORING_RELATION, DeltaSource, SpentBefore
from dpft.privacy.privacy_config import NOT_PRIVATE
from dpft.reports.epsilon import NOT_PRIVATE_SEED, delta_warnings
from dpft.reports.privacy_json import PrivateVocabulary, TokenizerCost, WithTokenizer
from dpft.run_folder import (
    HISTOGRAM,
    JOURNAL,
    LEDGER,
    PRIVACY,
    TOKENIZER,
    TOKENIZER_CONFIG,
    read_file,
)
from dpft.strict_model import read_model

logger = logging.getLogger(__name__)

END_UNPROVEN = (
    "the ledger's end is unproven: the ledger is not closed, and without private/ dpft cannot check"
    " whether its last steps were removed. Epsilon covers only the steps that it contains. To check"
    " the end, set head=HASH to the head that was published elsewhere."
)


def account_for_spent(
    run: SpentRun, *, delta: float | None = None, accountant: str | None = None
) -> EpsilonBound:
    """Return the privacy cost of a run, computed from the lines of its ledger.

    By default, delta and the leading accountant come from the plan in the first line of the ledger.
    Other files of the run never replace them.

    Raises:
        InputError: ``delta`` is out of range, or no accountant can bound the steps.
    """
    plan, calibration = run.plan, run.plan.calibration
    if accountant is None:
        accountant = plan.accountant if calibration is None else calibration.accountant
    source: DeltaSource = GIVEN
    if delta is None:
        delta, source = plan.delta, plan.delta_source
    bound = account_taken(run.whole, delta, accountant)
    warnings = _ledger_warnings(run) + delta_warnings(delta, plan.num_examples, source=source)
    if plan.tokenizer is not None:
        warnings.append(with_its_tokenizer(run, delta))
    return bound.replace(warnings=(*bound.warnings, *warnings))


def _ledger_warnings(run: SpentRun) -> list[str]:
    """Return warnings about the end of a run's ledger."""
    warnings = [NOT_PRIVATE_SEED] if run.plan.reproducible else []
    if run.ledger.torn_step:
        warnings.append(
            "the last line of the ledger is incomplete: the run was interrupted while writing it."
            " Its step is counted."
        )
    elif run.ledger.journaled_step:
        warnings.append(
            f"{JOURNAL} has one step more than the ledger: the run was interrupted before it wrote"
            " the ledger line, or the line was removed. The step is counted."
        )
    if run.end is None:
        warnings.append(END_UNPROVEN)
    if not run.ledger.closed:
        warnings.append(
            f"the run has not ended: {run.steps} steps are counted, of {run.plan.steps} planned."
        )
    elif run.steps > run.plan.steps:
        warnings.append(
            f"{run.steps} steps are counted, of {run.plan.steps} planned: the run was interrupted,"
            " and some steps were repeated with new noise."
        )
    return warnings


def with_its_tokenizer(run: SpentRun, delta: float) -> str:
    """Return a sentence that states the total privacy cost of a run and its tokenizer."""
    tokenizer = run.plan.tokenizer
    assert tokenizer is not None
    steps = sum_steps(run.whole, histogram_steps(tokenizer))
    both = account_taken(steps, delta + tokenizer.delta, "pld")
    return (
        "epsilon covers only the training; with the tokenizer, which was learned from the same"
        f" records, epsilon = {eps_text(both.epsilon)} (upper bound by {both.accountant}) at"
        f" delta = {delta_text(both.delta)}."
    )


def account_together(
    runs: Sequence[SpentRun], *, delta: float | None = None, accountant: str | None = None
) -> EpsilonBound:
    """Return the total privacy cost of several runs on the same data, by PLD or else RDP.

    Args:
        runs: The steps and plans of the runs.
        delta: Delta of the bound; None uses the delta of ``delta_together``.
        accountant: "rdp" makes RDP the leading accountant instead of PLD.

    Raises:
        InputError: The runs do not protect the same unit, or no accountant can bound them.
    """
    check_same_unit(runs)
    histograms = [histogram_steps(before) for _, before in spent_beside(runs)]
    steps = sum_steps(*(run.taken for run in runs), *histograms)
    delta = delta_together(runs) if delta is None else delta
    return _compose(steps, delta, accountant or "pld")


def delta_together(runs: Sequence[SpentRun]) -> float:
    """Return the delta of a composition: the smallest delta of the runs, plus tokenizers' deltas.

    The delta of a tokenizer is added, because its threshold always uses half of that delta.
    """
    tokenizers = [run.plan.delta for run in runs if thresholds_delta(run.taken)]
    tokenizers += [
        before.delta
        for run, before in spent_beside(runs)
        if thresholds_delta(histogram_steps(before))
    ]
    others = [run.plan.delta for run in runs if not thresholds_delta(run.taken)]
    return math.fsum([*tokenizers, *([min(others)] if others else [])])


def spent_beside(runs: Sequence[SpentRun]) -> list[tuple[SpentRun, SpentBefore]]:
    """Return the tokenizers and histograms that plans name, unless they are among the runs.

    Each tokenizer or histogram appears once, together with a run whose plan names it. Its cost adds
    to the cost of the runs.

    Raises:
        StateError: A named run is among the runs, but its ledger is not the ledger that the plan
            names.
    """
    runs_by_id = {run.ledger.run_id: run for run in runs}
    spent: dict[str, tuple[SpentRun, SpentBefore]] = {}
    named_by_plans = [
        (run, before)
        for run in runs
        for before in (run.plan.tokenizer, run.plan.counts)
        if before is not None
    ]
    for run, before in named_by_plans:
        named = runs_by_id.get(before.run_id)
        if named is None:
            spent.setdefault(before.run_id, (run, before))
        elif named.ledger.heads[before.lines : before.lines + 1] != (before.head,):
            raise StateError(
                f"the ledger of {named.folder} must have the head {before.head} after line"
                f" {before.lines}, as the plan of {run.folder} records, but it was truncated or"
                " replaced. Restore it from a backup."
            )
    return list(spent.values())


def without_counted(runs: Sequence[SpentRun]) -> tuple[list[SpentRun], list[str]]:
    """Return the runs, except for histograms whose cost is included in the plan of another run.

    Returns:
        The other runs, and a sentence for each skipped histogram.

    Raises:
        StateError: As for ``spent_beside``.
    """
    spent_beside(runs)
    trainings = {run.plan.counts.run_id: run.folder for run in runs if run.plan.counts is not None}
    notes = [
        f"{run.folder}: counted with {trainings[run.ledger.run_id]}, because that plan contains"
        " this histogram"
        for run in runs
        if run.ledger.run_id in trainings
    ]
    return [run for run in runs if run.ledger.run_id not in trainings], notes


def check_same_unit(runs: Sequence[SpentRun]) -> None:
    """Reject runs whose epsilons protect different units."""
    first = runs[0]
    for run in runs[1:]:
        names = ["unit", "neighboring_relation"]
        # Runs with the same unit column protect the same unit, regardless of the number of records.
        definitions = (first.plan.unit_definition, run.plan.unit_definition)
        if first.plan.unit == EXAMPLE and None not in definitions:
            names.append("unit_definition")
        for name in names:
            expected, value = getattr(first.plan, name), getattr(run.plan, name)
            if value != expected:
                raise InputError(
                    f"runs must all have the same {name}, got {expected!r} in {first.folder} and"
                    f" {value!r} in {run.folder}. Their epsilons protect different things, so"
                    " compose them separately.",
                    key="runs",
                    value=value,
                )


def check_head(run: SpentRun, head: str) -> None:
    """Reject a ledger whose head differs from a head that was published elsewhere."""
    ledger = run.ledger
    if ledger.head == head:
        return
    reason = (
        f"The expected head is its head after line {ledger.heads.index(head)}"
        if head in ledger.heads
        else "It was replaced or rewritten, or the expected head belongs to another run"
    )
    raise StateError(
        f"the ledger of {run.folder} must have the head {head}, got {ledger.head}. {reason}."
    )


def account_taken(taken: Mapping[Noise, int], delta: float, leader: str) -> EpsilonBound:
    """Return the privacy cost of noisy steps at ``delta``, which includes the delta of thresholds.

    Raises:
        InputError: ``delta`` is out of range, or no accountant can bound the steps.
    """
    if len(taken) != 1:
        return _compose(taken, delta, leader)
    (mechanism,) = as_mechanisms(taken, delta)
    # Report the total delta, which includes the share of the thresholds.
    return account(mechanism, accountant=leader).replace(delta=delta)


def _compose(taken: Mapping[Noise, int], delta: float, leader: str) -> EpsilonBound:
    parts = as_mechanisms(taken, delta)
    if not parts:
        SampledGaussian(noise_multiplier=1, sample_rate=1, steps=1, delta=delta)  # checks delta
        warning = "no noisy step is in the ledger, so nothing was spent."
        return EpsilonBound(
            epsilon=0.0, delta=delta, accountant="rdp", epsilons={}, warnings=(warning,)
        )
    bound = account_composition(Composition(parts=parts), accountant=leader)
    return bound.replace(delta=delta)


PUBLIC_TOKENIZER = (
    "the tokenizer of model.tokenizer has no ledger and is taken as public"
    " (model.tokenizer_is_public=true): epsilon does not cover its texts"
)


def tokenizer_of(config: TrainConfig) -> SpentRun | None:
    """Return the privacy cost of a private run's tokenizer, or None without a tokenizer's ledger.

    Raises:
        InputError: The tokenizer does not exist, its noise was predictable, it protects another
            unit than the run, or it lacks a required ledger.
        StateError: The ledger is damaged, or the tokenizer differs from the tokenizer that its run
            made.
    """
    guarantee, tokenizer = config.privacy.guarantee, config.model.tokenizer
    if guarantee is None or tokenizer is None:
        return None
    folder = _tokenizer_run(tokenizer)
    if folder is None:
        _check_without_ledger(config)
        return None
    spent = read_spent(str(folder))
    pieces = read_model(folder / PRIVACY, PrivateVocabulary).pieces
    digest = hashlib.sha256(read_file(folder / TOKENIZER / "tokenizer.json")).hexdigest()
    # The ledger does not contain the privacy cost of a replaced tokenizer.
    if pieces is None or pieces.tokenizer_sha256 != digest:
        raise StateError(
            f"{folder / TOKENIZER} is not the tokenizer that {folder / PRIVACY} describes. Restore"
            " it from a backup."
        )
    if spent.plan.reproducible and guarantee.noise_seed is None:
        raise InputError(
            f"model.tokenizer must be private, but the noise of {tokenizer!r} was predictable"
            " (privacy.noise_seed), so no epsilon holds with it. Make a tokenizer without"
            " privacy.noise_seed.",
            key="model.tokenizer",
            value=tokenizer,
        )
    of_training = {
        "unit": guarantee.unit,
        "neighboring_relation": NEIGHBORING_RELATION,
        "unit_definition": guarantee.unit_definition(config.task.unit_definition),
    }
    for name, expected in of_training.items():
        value = getattr(spent.plan, name)
        if name == "unit_definition" and (guarantee.unit != EXAMPLE or value is None):
            continue  # a column is the same unit, however many records are used
        if value != expected:
            raise InputError(
                f"model.tokenizer must have the {name} of the run, {expected!r}, got {value!r} in"
                f" {folder}. Their epsilons protect different things, so make a tokenizer for this"
                " run.",
                key="model.tokenizer",
                value=tokenizer,
            )
    return spent


def _tokenizer_run(tokenizer: str) -> Path | None:
    """Return the folder of the ``dpft tokenizer`` run that made a tokenizer, or None.

    The path may name the run or the folder ``tokenizer`` inside the run. Both are accepted, so that
    naming the inner folder does not hide the cost.
    """
    path = Path(tokenizer).expanduser()
    if not path.exists():
        raise InputError(
            "model.tokenizer must be the folder of a dpft tokenizer run, or of a tokenizer, but"
            f" {tokenizer!r} does not exist. Restore it, or give its path on this machine.",
            key="model.tokenizer",
            value=tokenizer,
        )
    resolved = path.resolve()
    for folder in (path, resolved.parent) if resolved.name == TOKENIZER else (path,):
        if (folder / LEDGER).exists():
            return folder
        if (folder / HISTOGRAM).exists():
            raise StateError(
                f"{folder / LEDGER} is missing, so the privacy cost of the tokenizer is unknown."
                " Restore it from a backup."
            )
    return None


def _check_without_ledger(config: TrainConfig) -> None:
    """Reject a tokenizer without a known privacy cost, unless the user declared it public."""
    if config.model.tokenizer_is_public:
        return
    path = Path(str(config.model.tokenizer)).expanduser().resolve()
    if any(map(_is_marked_not_private, (path, path / TOKENIZER))):
        raise InputError(
            f"model.tokenizer must be private, but {config.model.tokenizer!r} was made with"
            " privacy=none. Make a tokenizer with privacy.eps, or declare this one public if its"
            " texts are public.",
            key="model.tokenizer",
            value=config.model.tokenizer,
            hint="model.tokenizer_is_public=true",
        )
    if config.task.corpus_form is not None:
        raise InputError(
            f"model.tokenizer={config.model.tokenizer} has no {LEDGER} that records its privacy"
            " cost. Give the folder of a dpft tokenizer run, or declare the tokenizer public if it"
            " was made without private texts.",
            key="model.tokenizer",
            value=config.model.tokenizer,
            hint="model.tokenizer_is_public=true",
        )
    logger.warning("%s", PUBLIC_TOKENIZER.replace(" (model.tokenizer_is_public=true)", ""))


def _is_marked_not_private(tokenizer: Path) -> bool:
    """Return whether the files of a tokenizer state that it was made without privacy."""
    try:
        content = json.loads((tokenizer / TOKENIZER_CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # loading the tokenizer reports the error
        return False
    return isinstance(content, dict) and NOT_PRIVATE in content


def spent_before(tokenizer: SpentRun | None) -> SpentBefore | None:
    """Return a tokenizer's cost as a plan stores it, so that the folder is not needed later."""
    if tokenizer is None or not tokenizer.ledger.mechanisms:
        return None
    mechanism = tokenizer.ledger.mechanisms[0]
    assert isinstance(mechanism, Histogram)
    return SpentBefore(
        run_id=str(tokenizer.ledger.run_id),
        lines=tokenizer.ledger.lines,
        head=tokenizer.ledger.head,
        delta=tokenizer.plan.delta,
        mechanism=mechanism,
    )


def cost_together(
    taken: Mapping[Noise, int],
    *,
    epsilon: float,
    delta: float,
    before: SpentBefore,
) -> WithTokenizer:
    """Return the total cost of a run's steps and of the tokenizer that its plan names."""
    of_tokenizer = histogram_steps(before)
    both = account_taken(sum_steps(taken, of_tokenizer), delta + before.delta, "pld")
    tokenizer = account_taken(of_tokenizer, before.delta, "prv")
    return WithTokenizer(
        epsilon=min(both.epsilon, epsilon + tokenizer.epsilon),
        delta=both.delta,
        tokenizer=TokenizerCost(
            epsilon=tokenizer.epsilon,
            delta=before.delta,
            ledger=LedgerHead(lines=before.lines, head=before.head),
            simple_composition=epsilon + tokenizer.epsilon,
        ),
    )


def noise_beside(
    tokenizer: SpentRun, *, total_eps: float, delta: float, sample_rate: float, steps: int
) -> float:
    """Return the smallest noise multiplier for which training and tokenizer meet ``total_eps``."""
    of_tokenizer = as_mechanisms(tokenizer.taken, delta + tokenizer.plan.delta)

    def epsilon_of_both(noise_multiplier: float) -> float:
        training = SampledGaussian(
            noise_multiplier=noise_multiplier,
            sample_rate=sample_rate,
            steps=steps,
            delta=of_tokenizer[0].delta,
        )
        epsilon = evaluate("pld", Composition(parts=(training, *of_tokenizer)))
        assert epsilon.upper is not None
        return epsilon.upper

    try:
        return smallest_noise(epsilon_of_both, total_eps, start=1.0)
    except AccountantError as error:
        spent = account_taken(tokenizer.taken, tokenizer.plan.delta, "prv").epsilon
        raise InputError(
            f"privacy.total_eps={total_eps:g} is out of reach, because the tokenizer has already"
            f" spent {spent:.4g} ({error}). Raise privacy.total_eps.",
            key="privacy.total_eps",
            value=total_eps,
        ) from error
