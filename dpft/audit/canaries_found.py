"""Whether a run's canaries stand in synthetic text; private, as they and their coins are."""

from collections.abc import Sequence
from pathlib import Path

from dpft.audit.longest_runs import longest_runs
from dpft.audit.words import words_of
from dpft.records.audits import CanariesInTexts
from dpft.records.canaries import KeptCanaries
from dpft.records.form import read_record
from dpft.run_folder import CANARIES


def canaries_found(run: Path, texts: Sequence[str]) -> dict[str, CanariesInTexts]:
    """Returns what was found of the canaries, included ones and others apart; none without any.

    Args:
        run: The run's folder.
        texts: Synthetic ones.

    Raises:
        InputError: The file of the canaries is of another schema version.
        StateError: The file of the canaries is damaged.
    """
    path = run / CANARIES
    if not path.exists():
        return {}
    kinds: dict[str, list[Sequence[str]]] = {"included": [], "not_included": []}
    for canary in read_record(path, KeptCanaries).canaries:
        kinds["included" if canary.included else "not_included"].append(canary.texts)
    return {kind: _found(canaries, texts) for kind, canaries in kinds.items() if canaries}


def _found(canaries: Sequence[Sequence[str]], texts: Sequence[str]) -> CanariesInTexts:
    everything = "\n".join(texts)
    runs = longest_runs(
        [words_of(text) for canary in canaries for text in canary],
        [words_of(text) for text in texts],
    )
    return CanariesInTexts(
        canaries=len(canaries),
        found=sum(any(text.strip() in everything for text in canary) for canary in canaries),
        longest_run=max(runs.tolist(), default=0),
    )
