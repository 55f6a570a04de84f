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
from typing import Any, TypeGuard

from dpft.errors import StateError
from dpft.files import read_json, read_yaml
from dpft.privacy.accounting.accountants import LEADING_ACCOUNTANTS
from dpft.privacy.accounting.membership import shown_epsilon
from dpft.privacy.ledger import LedgerRecord
from dpft.privacy.mechanisms.histogram import histogram_of
from dpft.privacy.plan import GIVEN, HistogramPlan, PrivacyPlan, write_plan
from dpft.privacy.spending import steps_taken
from dpft.reports.run.run_record import read_privacy
from dpft.run_folder import CONFIGURATION, LEDGER, PRIVACY, TRIALS

SAME = 1e-9
"""Relative difference that rounding explains."""
PLANNED = (
    *("noise_multiplier", "sample_rate", "steps", "delta", "num_examples", "expected_batch_size"),
    *("clipping", "unit", "unit_definition", "neighboring_relation", "sampler", "calibration"),
    *("phases", "delta_source", "mechanism"),
)
"""Keys of privacy.json that the plan has under the same name."""
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
        if "epsilon" not in privacy:
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


def _of_ledger(privacy: Mapping[str, Any], ledger: LedgerRecord) -> Iterator[Fact]:
    known = privacy.get("ledger")
    lodged = known if isinstance(known, Mapping) else {}
    yield "ledger.lines", lodged.get("lines"), ledger.lines
    yield "ledger.head", lodged.get("head"), ledger.head
    yield "steps_taken", privacy.get("steps_taken"), ledger.steps
    plan = ledger.plan
    assert plan is not None
    yield "private", privacy.get("private"), not plan.reproducible
    if "participations" in privacy and isinstance(plan, PrivacyPlan):
        known = plan.event(ledger.streams or (1,)).steps
        yield "participations", privacy["participations"], known


def _of_plan(privacy: Mapping[str, Any], ledger: LedgerRecord) -> Iterator[Fact]:
    plan = ledger.plan
    if isinstance(plan, HistogramPlan):
        for name, value in plan.histogram.items():
            if name != "name":
                yield name, privacy.get(name), value
    assert plan is not None
    written = write_plan(plan)
    selected = "selection" in privacy
    for name in PLANNED:
        if name in written and not (selected and name == "calibration"):
            yield name, privacy.get(name), written[name]


def _of_accountants(
    folder: Path, privacy: Mapping[str, Any], ledger: LedgerRecord
) -> Iterator[Fact]:
    """Yields what epsilon must be: calibrated, exact, or whose bound the file says it is."""
    plan, epsilon = ledger.plan, privacy.get("epsilon")
    if isinstance(plan, HistogramPlan):
        yield "epsilon", epsilon, histogram_of(plan.histogram).epsilon
        return
    assert isinstance(plan, PrivacyPlan)
    calibration = plan.calibration
    if plan.is_trial or "selection" in privacy:
        yield from _of_search(folder, privacy, plan)
    elif calibration is not None and plan.event(ledger.streams or (1,)) == plan.event():
        yield "accountant", privacy["accountant"], calibration.accountant
        yield "epsilon", epsilon, calibration.epsilon
    else:
        name = privacy["accountant"]
        if name not in LEADING_ACCOUNTANTS:
            yield "accountant", name, " or ".join(LEADING_ACCOUNTANTS)
        answers = privacy.get("epsilons")
        answer = answers.get(name) if isinstance(answers, Mapping) else None
        yield "epsilon", epsilon, answer.get("upper") if isinstance(answer, Mapping) else answer


def _of_search(folder: Path, privacy: Mapping[str, Any], plan: PrivacyPlan) -> Iterator[Fact]:
    """Yields the bound that a search was bound to before its first trial, which its plans have."""
    calibration = plan.calibration
    if calibration is not None:
        yield "accountant", privacy["accountant"], calibration.accountant
        yield "epsilon", privacy["epsilon"], calibration.epsilon
    path = folder / TRIALS
    drawn = read_json(path).get("calibration") if path.exists() else None
    if isinstance(drawn, Mapping):
        yield "epsilon", privacy["epsilon"], drawn.get("epsilon")


def _of_configuration(folder: Path, plan: PrivacyPlan | HistogramPlan) -> Iterator[Fact]:
    """Yields what config.yaml asked for, where the plan says what came of it."""
    path = folder / CONFIGURATION
    config = read_yaml(path) if path.is_file() else None
    asked = config.get("privacy") if isinstance(config, dict) else None
    if not isinstance(asked, dict):
        return
    if "unit" in asked:
        yield "unit", asked["unit"], plan.unit
    if "delta" in asked and (plan.delta_source == GIVEN or asked["delta"] is not None):
        yield "delta", asked["delta"], plan.delta
    if "noise_seed" in asked:
        yield "noise_seed", asked["noise_seed"] is not None, plan.reproducible
    if isinstance(plan, HistogramPlan) or plan.is_trial:
        return
    if asked.get("num_examples") is not None:
        yield "num_examples", asked["num_examples"], plan.num_examples
    calibration = plan.calibration
    if calibration is not None and calibration.target is not None and "eps" in asked:
        yield "eps", asked["eps"], calibration.target
    elif asked.get("noise_multiplier") is not None:
        yield "noise_multiplier", asked["noise_multiplier"], plan.noise_multiplier


def _impossible(folder: Path, privacy: Mapping[str, Any], ledger: LedgerRecord) -> Iterator[str]:
    """Yields an epsilon that is below what the ledger's steps show, whatever goes with it."""
    for name, of in (("epsilon", "delta"), ("epsilon_with_tokenizer", "delta_with_tokenizer")):
        stated, delta = privacy.get(name), privacy.get(of)
        if name != "epsilon" and stated is None and delta is None:
            continue
        if not _is_number(stated) or not _is_number(delta) or not 0 < delta < 1:
            yield (
                f"{folder / PRIVACY}: {name} must be a number that goes with a {of} in (0, 1), got"
                f" {stated!r} and {delta!r}"
            )
            continue
        for noise, steps in steps_taken(ledger, folder / LEDGER).items():
            if noise.threshold_delta:
                continue  # A histogram's is exact, and was compared.
            least = shown_epsilon(
                noise_multiplier=noise.noise_multiplier,
                sample_rate=noise.sample_rate,
                steps=steps,
                delta=delta,
            )
            if stated < least * (1 - 1e-6):
                yield (
                    f"{folder / PRIVACY}: {name} must be at least {least:.4g}, which the"
                    f" {steps} noisy steps of {folder / LEDGER} show at delta = {delta:.4g}, got"
                    f" {stated:.4g}"
                )


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


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
