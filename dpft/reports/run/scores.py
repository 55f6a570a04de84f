"""A run's scores as the reports show them: a table for each split, private splits marked.

Of a private split an entry of metrics.json may say no more than that its scores are in private/.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dpft.records.scores import ScoreEntry


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
    """The scores on one split, a column per stage that is shown."""

    task: str
    split: str
    public: bool
    stages: list[str]
    examples: list[int]
    """Distinct inputs scored at each stage; none where their number is private."""
    rows: list[tuple[str, list[float | None]]]
    not_computed: dict[str, list[str]]
    """Reason to the metrics that have no value because of it."""
    texts: list[ShownText]
    """Some of those written after training; none of a private split."""
    hidden: list[str]
    """Stages whose scores are in private/ alone."""
    digits: int | None
    """Significant digits that scores are rounded to; None: as they were computed."""


def score_tables(evaluations: Sequence[ScoreEntry]) -> list[ScoreTable]:
    """Returns a table for each task and split, in order of first occurrence."""
    splits: dict[tuple[str, str], list[ScoreEntry]] = {}
    for entry in sorted(evaluations, key=lambda entry: entry.stage != "before"):
        splits.setdefault((entry.task, entry.split), []).append(entry)
    return [_table(task, split, entries) for (task, split), entries in splits.items()]


def _table(task: str, split: str, entries: Sequence[ScoreEntry]) -> ScoreTable:
    seen = [entry for entry in entries if entry.examples is not None or entry.digits is not None]
    return ScoreTable(
        task=task,
        split=split,
        public=all(entry.split_is_public for entry in seen),
        stages=[entry.stage for entry in seen],
        examples=[entry.examples for entry in seen if entry.examples is not None],
        rows=metric_rows(seen),
        not_computed=_not_computed(seen),
        texts=_shown_texts(entries),
        hidden=[entry.stage for entry in entries if entry not in seen],
        digits=next((entry.digits for entry in seen if entry.digits is not None), None),
    )


def metric_rows(evaluations: Sequence[ScoreEntry]) -> list[tuple[str, list[float | None]]]:
    """Returns each metric's name and its value at every stage, None where it was not computed."""
    names = dict.fromkeys(name for entry in evaluations for name in entry.metrics)
    return [(name, [entry.metrics.get(name) for entry in evaluations]) for name in names]


def _shown_texts(entries: Sequence[ScoreEntry]) -> list[ShownText]:
    """Returns the texts of a split's entries; none unless each says that the split is public."""
    if not all(entry.split_is_public for entry in entries):
        return []
    samples = {entry.stage: entry.samples or () for entry in entries}
    before = {sample.input: sample.prediction for sample in samples.get("before", [])}
    return [
        ShownText(
            input=sample.input,
            before=before.get(sample.input),
            after=sample.prediction,
            reference=sample.reference,
        )
        for sample in samples.get("after", [])
    ]


def _not_computed(evaluations: Sequence[ScoreEntry]) -> dict[str, list[str]]:
    """Returns the metrics without a value; where one has, at another stage, its stage is named."""
    computed = {name for entry in evaluations for name in entry.metrics}
    reasons = {
        f"{name} {entry.stage} fine-tuning" if name in computed else name: why
        for entry in evaluations
        for name, why in entry.not_computed.items()
    }
    found: dict[str, list[str]] = {}
    for name, why in reasons.items():
        found.setdefault(why, []).append(name)
    return found
