"""What privacy.json says of the best of a search: the bound of choosing it, not one trial's own."""

from collections.abc import Mapping, Sequence
from typing import Any

from dpft.privacy.accounting.selection import TrialCount
from dpft.records.ledger import Calibration

NOT_OF_A_SEARCH = ("gave no bound", "is refused", "disagree.", "not a numerical composition.")
"""How warnings of a single run's accountants end or go on; they say nothing of a search's bound."""


def with_selection(
    record: Mapping[str, Any],
    calibration: Calibration,
    count: TrialCount,
    *,
    space: Mapping[str, Sequence[Any]],
) -> dict[str, Any]:
    """Returns the winner's record under the bound of the whole search.

    What accountants say of the winner's steps alone is left out: lower than what was spent, it
    would be read as epsilon.

    Args:
        record: The winner's privacy.json, as if it had been trained alone.
        calibration: Of the search.
        count: How the number of trials was drawn.
        space: What each trial drew its setting from.
    """
    warnings = [
        text for text in record["warnings"] if not any(part in text for part in NOT_OF_A_SEARCH)
    ]
    return {
        **{key: value for key, value in record.items() if key != "epsilon_curve"},
        **_with_tokenizer(record, calibration.epsilon),
        "epsilon": calibration.epsilon,
        "accountant": calibration.accountant,
        "epsilons": {calibration.accountant: calibration.epsilon},
        "warnings": warnings,
        "selection": {
            "theorem": "Papernot and Steinke 2022 (arXiv 2110.03620), Theorem 2",
            "eta": count.eta,
            "gamma": count.gamma,
            "expected_trials": count.expected,
            "search_space": {key: list(values) for key, values in space.items()},
        },
    }


def _with_tokenizer(record: Mapping[str, Any], epsilon: float) -> dict[str, Any]:
    """Returns what a search and its trials' tokenizer cost together: the sum of both epsilons.

    The choice among the trials has no mechanism to compose with the tokenizer's, and the winner's
    own steps cost less than the search.
    """
    if "epsilon_with_tokenizer" not in record:
        return {}
    both = epsilon + record["tokenizer"]["epsilon"]
    return {
        "epsilon_with_tokenizer": both,
        "tokenizer": {**record["tokenizer"], "simple_composition": both},
    }
