"""A run's scores as the reports show them: a table for each split, private splits marked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PRIVATE_SPLIT = "computed on private held-out records, not covered by epsilon"
SHOWN_OF_PUBLIC = ("samples", "confusion")
"""What an entry of metrics.json has of a public split alone."""
TRAINING_SPLIT = "computed on training records, not covered by epsilon"


@dataclass(frozen=True, kw_only=True)
class ShownText:
    """One input of a public split, and what the model wrote; an empty text may be what it wrote."""

    input: str
    before: str | None
    """Before training; None where this input was not shown then."""
    after: str
    reference: str
    """One right answer; empty where the split has none."""


@dataclass(frozen=True, kw_only=True)
class ScoreTable:
    """The scores on one split, a column per stage."""

    task: str
    split: str
    public: bool
    stages: list[str]
    examples: list[int]
    """Distinct inputs scored at each stage."""
    rows: list[tuple[str, list[float | None]]]
    not_computed: dict[str, list[str]]
    """Reason to the metrics that have no value because of it."""
    texts: list[ShownText]
    """Some of those written after training; none of a private split."""


def mark(entry: Mapping[str, Any], public: bool) -> dict[str, Any]:
    """Returns an entry of metrics.json with whether its split is public; if not, without texts."""
    marked = {**entry, "split_is_public": public}
    if public:
        return marked
    return {
        **without_samples(marked),
        "note": TRAINING_SPLIT if entry["split"] == "train" else PRIVATE_SPLIT,
    }


def without_samples(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an entry of metrics.json without texts, for a split that may no longer be shown."""
    return {name: value for name, value in entry.items() if name not in SHOWN_OF_PUBLIC}


def score_tables(evaluations: Sequence[Mapping[str, Any]]) -> list[ScoreTable]:
    """Returns a table for each task and split, in order of first occurrence."""
    splits: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in sorted(evaluations, key=lambda entry: entry["stage"] != "before"):
        splits.setdefault((entry["task"], entry["split"]), []).append(entry)
    return [
        ScoreTable(
            task=task,
            split=split,
            public=all(entry["split_is_public"] for entry in entries),
            stages=[entry["stage"] for entry in entries],
            examples=[entry["examples"] for entry in entries],
            rows=metric_rows(entries),
            not_computed=_not_computed(entries),
            texts=_shown_texts(entries),
        )
        for (task, split), entries in splits.items()
    ]


def metric_rows(evaluations: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[float | None]]]:
    """Returns each metric's name and its value at every stage, None where it was not computed."""
    names = dict.fromkeys(name for entry in evaluations for name in entry["metrics"])
    return [(name, [entry["metrics"].get(name) for entry in evaluations]) for name in names]


def _shown_texts(entries: Sequence[Mapping[str, Any]]) -> list[ShownText]:
    """Returns the texts of a split's entries; none unless each says that the split is public."""
    if not all(entry["split_is_public"] for entry in entries):
        return []
    samples = {entry["stage"]: entry.get("samples", []) for entry in entries}
    before = {sample["input"]: sample["prediction"] for sample in samples.get("before", [])}
    return [
        ShownText(
            input=sample["input"],
            before=before.get(sample["input"]),
            after=sample["prediction"],
            reference=sample["reference"],
        )
        for sample in samples.get("after", [])
    ]


def _not_computed(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Returns the metrics without a value; where one has, at another stage, its stage is named."""
    computed = {name for entry in evaluations for name in entry["metrics"]}
    reasons = {
        f"{name} {entry['stage']} fine-tuning" if name in computed else name: why
        for entry in evaluations
        for name, why in entry["not_computed"].items()
    }
    found: dict[str, list[str]] = {}
    for name, why in reasons.items():
        found.setdefault(why, []).append(name)
    return found
