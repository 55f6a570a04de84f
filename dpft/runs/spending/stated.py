"""What privacy.json and config.yaml say of a run, held against the plan in its ledger.

Reports, cards and the statements beside generated texts are printed from privacy.json, which
nothing signs: whoever owns the folder can edit it. The ledger's first line is the plan, and its
chain of hashes covers the steps. A key that says otherwise is named, with the file that has it;
what depends on the file is refused, and ``dpft account run=`` answers from the ledger. An epsilon
that no accountant's answer of this version can confirm at a glance must at least not be below what
a simple test of the ledger's steps shows (``shown_epsilon``).
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpft.errors import StateError
from dpft.privacy.accounting.accountants import LEADING_ACCOUNTANTS
from dpft.privacy.accounting.membership import shown_epsilon
from dpft.privacy.ledger import LedgerRecord
from dpft.privacy.mechanisms.histogram import histogram_of
from dpft.privacy.plan import GIVEN, HistogramPlan, PrivacyPlan, write_plan
from dpft.privacy.spending import steps_taken
from dpft.records.bounds import Interval
from dpft.records.configuration import read_saved
from dpft.records.form import as_json, read_record
from dpft.records.privacy_file import guarantee, has_noise, read_privacy
from dpft.records.promises import PrivateRun
from dpft.records.sweeps import Search
from dpft.records.vocabularies import PrivateVocabulary
from dpft.run_folder import CONFIGURATION, LEDGER, PRIVACY, TRIALS

SAME = 1e-9
"""Relative difference that rounding explains."""
PLANNED = (
    *("noise_multiplier", "sample_rate", "steps", "delta", "num_examples", "expected_batch_size"),
    *("clipping", "unit", "unit_definition", "neighboring_relation", "sampler", "calibration"),
    *("phases", "delta_source", "mechanism"),
)
"""Keys of privacy.json that the plan has under the same name."""
Stated = PrivateRun | PrivateVocabulary
"""A privacy.json with an epsilon."""
Fact = tuple[str, Any, Any]
"""A key, what the file says, and what the ledger does."""
ABSENT = "nothing"


def check_stated(folder: Path, ledger: LedgerRecord) -> None:
    """Refuses a run whose privacy.json or config.yaml contradicts its ledger.

    Args:
        folder: The run's.
        ledger: Its ledger.

    Raises:
        StateError: One does, as where it was edited.
    """
    found = list(differences(folder, ledger))
    if found:
        raise StateError(f"{'; '.join(found)}. Put it back as it was.")


def differences(folder: Path, ledger: LedgerRecord) -> Iterator[str]:
    """Yields what files beside a ledger say otherwise, a sentence each, without its full stop.

    Args:
        folder: The run's.
        ledger: Its ledger, with a plan.
    """
    path = folder / PRIVACY
    plan = ledger.plan
    if plan is None:
        return
    facts: list[Fact] = []
    if path.exists():
        privacy = read_privacy(path)
        if not has_noise(privacy):
            yield (
                f"{path} must state the epsilon of the {ledger.counted_steps} noisy steps of"
                f" {folder / LEDGER}, got none: it was edited or is another run's"
            )
        else:
            facts = [*_of_ledger(privacy, ledger), *_of_plan(privacy, ledger)]
            yield from _words(path, facts)
            if not facts_differ(facts):
                yield from _words(path, _of_accountants(folder, privacy, ledger))
                yield from _impossible(folder, privacy, ledger)
    yield from _words(folder / CONFIGURATION, _of_configuration(folder, plan), section="privacy.")


def facts_differ(facts: list[Fact]) -> bool:
    """Returns whether any of some facts is not what the ledger says."""
    return any(not _same(stated, known) for _, stated, known in facts)


def _words(path: Path, facts: Any, *, section: str = "") -> Iterator[str]:
    for name, stated, known in facts:
        if not _same(stated, known):
            yield (
                f"{path}: {section}{name} must be {_shown(known)}, as the ledger says, got"
                f" {_shown(stated)}"
            )


def _shown(value: Any) -> str:
    return ABSENT if value is None else repr(value)


def _of_ledger(privacy: Stated, ledger: LedgerRecord) -> Iterator[Fact]:
    yield "ledger.lines", privacy.ledger.lines, ledger.lines
    yield "ledger.head", privacy.ledger.head, ledger.head
    yield "steps_taken", privacy.steps_taken, ledger.steps
    plan = ledger.plan
    assert plan is not None
    yield "private", privacy.private, not plan.reproducible
    stated = privacy.participations if isinstance(privacy, PrivateRun) else None
    if stated is not None and isinstance(plan, PrivacyPlan):
        yield "participations", stated, plan.event(ledger.streams or (1,)).steps


def _of_plan(privacy: Stated, ledger: LedgerRecord) -> Iterator[Fact]:
    plan, stated = ledger.plan, as_json(privacy)
    if isinstance(plan, HistogramPlan):
        for name, value in plan.histogram.items():
            if name != "name":
                yield name, stated.get(name), value
    assert plan is not None
    written = write_plan(plan)
    for name in PLANNED:
        if name in written and not (_is_of_search(privacy) and name == "calibration"):
            yield name, stated.get(name), written[name]


def _of_accountants(folder: Path, privacy: Stated, ledger: LedgerRecord) -> Iterator[Fact]:
    """Yields what epsilon must be: calibrated, exact, or whose bound the file says it is."""
    plan, epsilon = ledger.plan, privacy.epsilon
    if isinstance(plan, HistogramPlan):
        yield "epsilon", epsilon, histogram_of(plan.histogram).epsilon
        return
    assert isinstance(plan, PrivacyPlan)
    calibration = plan.calibration
    if plan.is_trial or _is_of_search(privacy):
        yield from _of_search(folder, privacy, plan)
    elif calibration is not None and plan.event(ledger.streams or (1,)) == plan.event():
        yield "accountant", privacy.accountant, calibration.accountant
        yield "epsilon", epsilon, calibration.epsilon
    else:
        name = privacy.accountant
        if name not in LEADING_ACCOUNTANTS:
            yield "accountant", name, " or ".join(LEADING_ACCOUNTANTS)
        answer = privacy.epsilons.get(name) if isinstance(privacy, PrivateRun) else None
        yield "epsilon", epsilon, answer.upper if isinstance(answer, Interval) else answer


def _is_of_search(privacy: Stated) -> bool:
    return isinstance(privacy, PrivateRun) and privacy.selection is not None


def _of_search(folder: Path, privacy: Stated, plan: PrivacyPlan) -> Iterator[Fact]:
    """Yields the bound that a search was bound to before its first trial, which its plans have."""
    calibration = plan.calibration
    if calibration is not None:
        yield "accountant", privacy.accountant, calibration.accountant
        yield "epsilon", privacy.epsilon, calibration.epsilon
    path = folder / TRIALS
    if path.exists():
        yield "epsilon", privacy.epsilon, read_record(path, Search).calibration.epsilon


def _of_configuration(folder: Path, plan: PrivacyPlan | HistogramPlan) -> Iterator[Fact]:
    """Yields what config.yaml asked for, where the plan says what came of it."""
    config = read_saved(folder / CONFIGURATION)
    asked = None if config is None else config.privacy
    if asked is None:
        return
    if asked.unit is not None:
        yield "unit", asked.unit, plan.unit
    if plan.delta_source == GIVEN or asked.delta is not None:
        yield "delta", asked.delta, plan.delta
    yield "noise_seed", asked.noise_seed is not None, plan.reproducible
    if isinstance(plan, HistogramPlan) or plan.is_trial:
        return
    if asked.num_examples is not None:
        yield "num_examples", asked.num_examples, plan.num_examples
    calibration = plan.calibration
    if calibration is not None and calibration.target is not None:
        yield "eps", asked.eps, calibration.target
    elif asked.noise_multiplier is not None:
        yield "noise_multiplier", asked.noise_multiplier, plan.noise_multiplier


def _impossible(folder: Path, privacy: Stated, ledger: LedgerRecord) -> Iterator[str]:
    """Yields an epsilon that is below what the ledger's steps show, whatever goes with it."""
    stated = [("epsilon", float(privacy.epsilon), float(privacy.delta))]
    if isinstance(privacy, PrivateRun) and privacy.tokenizer is not None:
        stated.append(("epsilon_with_tokenizer", *guarantee(privacy)))
    for name, epsilon, delta in stated:
        for noise, steps in steps_taken(ledger, folder / LEDGER).items():
            if noise.threshold_delta:
                continue  # A histogram's is exact, and was compared.
            least = shown_epsilon(
                noise_multiplier=noise.noise_multiplier,
                sample_rate=noise.sample_rate,
                steps=steps,
                delta=delta,
            )
            if epsilon < least * (1 - 1e-6):
                yield (
                    f"{folder / PRIVACY}: {name} must be at least {least:.4g}, which the"
                    f" {steps} noisy steps of {folder / LEDGER} show at delta = {delta:.4g}, got"
                    f" {epsilon:.4g}"
                )


def _same(stated: Any, known: Any) -> bool:
    if isinstance(stated, bool) or isinstance(known, bool):
        return stated is known
    if isinstance(stated, int | float) and isinstance(known, int | float):
        try:
            return math.isclose(stated, known, rel_tol=SAME)
        except OverflowError:  # a whole number beyond every float
            return stated == known
    if isinstance(stated, Mapping) and isinstance(known, Mapping):
        names = stated.keys() | known
        return all(_same(stated.get(name), known.get(name)) for name in names)
    if isinstance(stated, list | tuple) and isinstance(known, list | tuple):
        pairs = len(stated) == len(known)
        return pairs and all(_same(one, two) for one, two in zip(stated, known, strict=True))
    return bool(stated == known)
