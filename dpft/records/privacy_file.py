"""privacy.json of any run, read in one place, and what of it can be relied on.

Four kinds of runs write one: training with privacy and without (``dpft.records.promises``), and
vocabularies made with privacy and without (``dpft.records.vocabularies``). Reports and cards are
printed from what is read here. The file is an output: nothing signs it, and no command decides by
it what was spent; the ledger says that.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from dpft.errors import InputError, StateError
from dpft.files import read_json
from dpft.records.form import Misfit, parse, read_record
from dpft.records.ledger import LedgerHead
from dpft.records.promises import (
    GeneratedOpenly,
    GeneratedPrivately,
    OpenRun,
    PrivateRun,
    StartingModel,
)
from dpft.records.vocabularies import OpenVocabulary, PrivateVocabulary

RunPrivacy = PrivateRun | OpenRun
"""What a run that trained a model promises."""
Statement = GeneratedPrivately | GeneratedOpenly
"""What stands beside synthetic records."""
Vocabulary = PrivateVocabulary | OpenVocabulary
"""What a run of ``dpft tokenizer`` promises."""
LINEAR_NOISE = "float32 pseudo-random"
"""How the noise source of earlier versions begins, without their ``privacy.secure_noise``."""
COMPUTABLE = (
    "this run's noise came from a linear generator, whose state can be computed from the released"
    " weights: its guarantee does not hold; treat the model as trained without it (SECURITY.md)"
)


def read_privacy(path: Path) -> RunPrivacy | Vocabulary:
    """Returns what a privacy.json says; a run of an earlier version's noise gets a warning.

    Raises:
        FileNotFoundError: It is not there.
        InputError: It is of another schema version.
        StateError: It is damaged.
    """
    content = read_json(path)
    kind: Any = OpenRun
    if "mechanism" in content and "total_parameters" not in content:
        kind = PrivateVocabulary if "epsilon" in content else OpenVocabulary
    elif "epsilon" in content or "delta" in content:
        kind = PrivateRun
    try:
        found: RunPrivacy | Vocabulary = parse(content, kind)
    except Misfit as misfit:
        raise StateError(f"{path} is damaged: {misfit}; put it back as it was.") from None
    if has_noise(found) and found.noise_source.startswith(LINEAR_NOISE):
        return replace(found, warnings=(COMPUTABLE, *found.warnings))
    return found


def run_privacy(path: Path) -> RunPrivacy:
    """Returns the privacy.json of a run that trained a model.

    Raises:
        FileNotFoundError: It is not there.
        InputError: It is of another schema version, or of a tokenizer's run.
        StateError: It is damaged.
    """
    found = read_privacy(path)
    if isinstance(found, PrivateVocabulary | OpenVocabulary):
        raise InputError(
            f"{path.parent} is of dpft tokenizer, which trains no model; its own report says all of"
            " it."
        )
    return found


def read_statement(path: Path) -> Statement:
    """Returns what stands beside synthetic records.

    Raises:
        InputError: It is of another schema version.
        StateError: It is damaged.
    """
    kind: Any = Statement
    found: Statement = read_record(path, kind)
    return found


def spent_on(record: RunPrivacy | Statement) -> tuple[float, LedgerHead] | None:
    """Returns what tells a private run from any other: its epsilon, of which ledger; else None."""
    if isinstance(record, PrivateRun | GeneratedPrivately):
        return record.epsilon, record.ledger
    return None


def read_vocabulary(path: Path) -> Vocabulary:
    """Returns the privacy.json of a tokenizer's run.

    Raises:
        InputError: It is of another schema version, or of a run that trained a model.
        StateError: It is damaged.
    """
    found = read_privacy(path)
    if isinstance(found, PrivateRun | OpenRun):
        raise StateError(f"{path} must be of a run of dpft tokenizer; put it back as it was.")
    return found


def has_noise(privacy: RunPrivacy | Vocabulary) -> TypeGuard[PrivateRun | PrivateVocabulary]:
    """Returns whether noise was added, so that there is an epsilon."""
    return isinstance(privacy, PrivateRun | PrivateVocabulary)


def is_promised(
    privacy: RunPrivacy | Vocabulary,
) -> TypeGuard[PrivateRun | PrivateVocabulary]:
    """Returns whether there is an epsilon, read by ``read_privacy``, that is one to rely on.

    Not without privacy, nor of a test's seed, nor where the noise can be computed.
    """
    return has_noise(privacy) and privacy.private and COMPUTABLE not in privacy.warnings


def guarantee(privacy: PrivateRun | PrivateVocabulary | StartingModel) -> tuple[float, float]:
    """Returns the epsilon and delta of all that a model's release tells.

    Where the records made its tokenizer, too, they are those of both: epsilon of the training alone
    is no guarantee of the model.
    """
    if isinstance(privacy, PrivateVocabulary):
        return float(privacy.epsilon), float(privacy.delta)
    both, delta = privacy.epsilon_with_tokenizer, privacy.delta_with_tokenizer
    if both is None or delta is None:
        return float(privacy.epsilon), float(privacy.delta)
    return float(both), float(delta)
