"""What a run's privacy.json states, held against everything that knows better.

Reports, cards and the statements beside generated texts are printed from privacy.json, which
nothing signs: whoever owns the folder can edit it. What the ledger's chain of hashes covers (the
steps, their noise and their sample rate), what the checkpoints in ``private/`` were bound to, and
what config.yaml asked for must be in it, and an epsilon that is not below what a simple test of the
ledger's steps shows (``shown_epsilon``). One that all of them allow is still the file's word alone:
``dpft account run=`` computes it from the ledger, and believes no other.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from dpft.errors import StateError
from dpft.files import read_json, read_yaml
from dpft.privacy.accounting.accountants import LEADING_ACCOUNTANTS
from dpft.privacy.accounting.gaussian_histogram import MECHANISM as HISTOGRAM
from dpft.privacy.accounting.gaussian_histogram import histogram_of
from dpft.privacy.accounting.membership import shown_epsilon
from dpft.privacy.ledger import LedgerRecord
from dpft.privacy.spending import steps_taken
from dpft.run_folder import CHECKPOINT_STATES, CONFIGURATION, LEDGER, PRIVACY, TRIALS

SAME = 1e-9
"""Relative difference that rounding explains."""
Fact = tuple[str, Any, str]
"""A key of privacy.json, what it must be, and what says so."""


def check_stated(folder: Path, privacy: Mapping[str, Any], ledger: LedgerRecord) -> None:
    """Refuses a privacy.json that contradicts the ledger, a checkpoint, config.yaml or itself.

    Args:
        folder: The run's.
        privacy: Content of its privacy.json, by ``read_privacy``.
        ledger: Its ledger, which has the lines and the head that privacy.json names.

    Raises:
        StateError: It does, as where one of them was edited.
    """
    if "epsilon" not in privacy:
        if ledger.counted_steps:
            raise StateError(
                f"{folder / PRIVACY} must state the epsilon of the {ledger.counted_steps} noisy"
                f" steps of {folder / LEDGER}, got none; it was edited or is another run's. Put it"
                " back as it was."
            )
        return
    if not ledger.closed or ledger.steps < privacy["steps"]:
        raise StateError(
            f"{folder / PRIVACY} states the epsilon of a run that has ended, and"
            f" {folder / LEDGER} has {ledger.steps} of {privacy['steps']} steps"
            f"{'' if ledger.closed else ' and no closing line'}; one of the two was edited. Put it"
            " back as it was."
        )
    facts = [
        *_of_ledger(folder / LEDGER, privacy, ledger),
        *_of_plan(folder),
        *_of_search(folder),
        *_of_configuration(folder),
        *_of_accountants(privacy),
    ]
    for name, value, source in facts:
        if not _same(privacy.get(name), value):
            raise StateError(
                f"{folder / PRIVACY}: {name} must be {value!r}, as {source} says, got"
                f" {privacy.get(name)!r}; one of the two was edited. Put it back as it was."
            )
    _check_budget(folder, privacy)
    _check_is_possible(folder, privacy, ledger)


def _of_ledger(path: Path, privacy: Mapping[str, Any], ledger: LedgerRecord) -> Iterator[Fact]:
    source = str(path)
    yield "steps_taken", ledger.steps, source
    taken = steps_taken(ledger, path)
    batch = privacy.get("expected_batch_size")
    for noise in taken:  # One, since a plan has one; of two, privacy.json cannot be right.
        yield "noise_multiplier", noise.noise_multiplier, source
        yield "sample_rate", noise.sample_rate, source
        if isinstance(batch, int | float):
            yield "num_examples", round(batch / noise.sample_rate), f"the sample rate of {source}"
    for entry in ledger.mechanisms:
        if entry.get("name") == HISTOGRAM:
            yield "delta", entry.get("delta"), source
            yield "num_examples", entry.get("num_examples"), source
            yield "epsilon", histogram_of(entry).epsilon, source


def _of_plan(folder: Path) -> Iterator[Fact]:
    """Yields what the newest checkpoint was bound to."""
    for path in sorted(folder.glob(CHECKPOINT_STATES))[-1:]:
        run = read_json(path).get("run") or {}
        for name, value in (run.get("plan") or {}).items():
            yield name, value, str(path)
        if "promises" in run:
            yield "private", not run["promises"].get("reproducible"), str(path)


def _asked(folder: Path, section: str = "privacy") -> dict[str, Any]:
    """Returns a section of a run's configuration; empty where it has none."""
    path = folder / CONFIGURATION
    config = read_yaml(path) if path.is_file() else None
    asked = config.get(section) if isinstance(config, dict) else None
    return asked if isinstance(asked, dict) else {}


def _of_search(folder: Path) -> Iterator[Fact]:
    """Yields the bound that a search was bound to before its first trial."""
    path = folder / TRIALS
    calibration = read_json(path).get("calibration") if path.exists() else None
    if isinstance(calibration, Mapping):
        yield "accountant", calibration.get("accountant"), str(path)
        yield "epsilon", calibration.get("epsilon"), str(path)


def _of_configuration(folder: Path) -> Iterator[Fact]:
    """Yields what config.yaml fixes, whatever the plan is."""
    asked, path = _asked(folder), folder / CONFIGURATION
    for name in ("unit", "delta"):
        if asked.get(name) is not None:
            yield name, asked[name], str(path)
    if asked.get("noise_seed") is not None:
        yield "private", False, str(path)
    batch = _asked(folder, "train").get("expected_batch_size")
    if batch is not None:
        yield "expected_batch_size", batch, str(path)


def _check_budget(folder: Path, privacy: Mapping[str, Any]) -> None:
    """Refuses a budget in config.yaml below what the noise was calibrated to.

    Raises:
        StateError: It is, as where it was edited.
    """
    eps, calibration = _asked(folder).get("eps"), privacy.get("calibration")
    if not isinstance(eps, int | float) or calibration is None or "selection" in privacy:
        return
    if calibration["epsilon"] > eps:
        raise StateError(
            f"{folder / CONFIGURATION}: privacy.eps must be at least the epsilon of the calibration"
            f" in {folder / PRIVACY}, got {eps:g}; one of the two was edited. Put it back as it"
            " was."
        )


def _check_is_possible(folder: Path, privacy: Mapping[str, Any], ledger: LedgerRecord) -> None:
    """Refuses an epsilon that is below what the ledger's steps show.

    Raises:
        StateError: It is, as where it was edited, whatever else in the file goes with it.
    """
    for name, of in (("epsilon", "delta"), ("epsilon_with_tokenizer", "delta_with_tokenizer")):
        stated, delta = privacy.get(name), privacy.get(of)
        if name != "epsilon" and stated is None and delta is None:
            continue
        if not _is_number(stated) or not _is_number(delta) or not 0 < delta < 1:
            raise StateError(
                f"{folder / PRIVACY}: {name} must be a number that goes with a {of} in (0, 1), got"
                f" {stated!r} and {delta!r}; it was edited. Put it back as it was."
            )
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
                raise StateError(
                    f"{folder / PRIVACY}: {name} must be at least {least:.4g}, which the"
                    f" {steps} noisy steps of {folder / LEDGER} show at delta = {delta:.4g}, got"
                    f" {stated:.4g}; one of the two was edited. Put it back as it was."
                )


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _of_accountants(privacy: Mapping[str, Any]) -> Iterator[Fact]:
    """Yields what epsilon must be by privacy.json's own account of whose bound it is."""
    calibration, name = privacy.get("calibration"), privacy["accountant"]
    answers = privacy.get("epsilons")
    planned = "selection" not in privacy and privacy["steps_taken"] == privacy["steps"]
    if isinstance(calibration, Mapping) and planned:
        yield "accountant", calibration.get("accountant"), "its calibration"
        yield "epsilon", calibration.get("epsilon"), "its calibration"
    elif "words_kept" not in privacy:  # A histogram's is exact, and no accountant's.
        if "selection" not in privacy and name not in LEADING_ACCOUNTANTS:
            yield "accountant", " or ".join(LEADING_ACCOUNTANTS), "every report"
        answer = answers.get(name) if isinstance(answers, Mapping) else None
        upper = answer.get("upper") if isinstance(answer, Mapping) else answer
        yield "epsilon", upper, f"its answer of {name}"


def _same(stated: Any, value: Any) -> bool:
    if isinstance(stated, bool) or isinstance(value, bool):
        return stated is value
    if isinstance(stated, int | float) and isinstance(value, int | float):
        return math.isclose(stated, value, rel_tol=SAME)
    return bool(stated == value)
