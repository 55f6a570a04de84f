"""Whether a run's canaries stand in synthetic text; private, as they and their coins are."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpft.audit.longest_runs import longest_runs
from dpft.audit.words import words_of
from dpft.errors import StateError
from dpft.run_folder import CANARIES


@dataclass(frozen=True, kw_only=True)
class CanariesFound:
    """Canaries of one kind in synthetic texts."""

    canaries: int
    found: int
    """Those of which a text stands in one of them as a whole."""
    longest_run: int
    """Most words of a canary in a row that stand in one of them."""


def canaries_found(run: Path, texts: Sequence[str]) -> dict[str, CanariesFound]:
    """Returns what was found of the canaries, included ones and others apart; none without any.

    Args:
        run: The run's folder.
        texts: Synthetic ones.

    Raises:
        StateError: The file of the canaries is damaged.
    """
    path = run / CANARIES
    if not path.exists():
        return {}
    kinds: dict[str, list[Sequence[str]]] = {"included": [], "not_included": []}
    try:
        for canary in json.loads(path.read_text(encoding="utf-8"))["canaries"]:
            kinds["included" if canary["included"] else "not_included"].append(
                [str(text) for text in canary["texts"]]
            )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StateError(f"{path} is damaged; put it back as it was.") from error
    return {kind: _found(canaries, texts) for kind, canaries in kinds.items() if canaries}


def canary_record(found: Mapping[str, CanariesFound]) -> dict[str, dict[str, Any]]:
    """Returns what was found as JSON has it."""
    return {kind: asdict(one) for kind, one in found.items()}


def _found(canaries: Sequence[Sequence[str]], texts: Sequence[str]) -> CanariesFound:
    everything = "\n".join(texts)
    runs = longest_runs(
        [words_of(text) for canary in canaries for text in canary],
        [words_of(text) for text in texts],
    )
    return CanariesFound(
        canaries=len(canaries),
        found=sum(any(text.strip() in everything for text in canary) for canary in canaries),
        longest_run=max(runs.tolist(), default=0),
    )
