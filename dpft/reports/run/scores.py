"""A run's scores as the reports show them: a table for each split, private splits marked.

Of a metric the page says which direction is better, what it means, and which one leads. Of a
private split an entry of metrics.json may say no more than that its scores are in private/.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dpft.evaluation.metrics.base import HIGHER, METRICS, MetricSpec
from dpft.records.configuration import RunConfiguration
from dpft.records.scores import STAGES, ScoreEntry, Stage


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
    stages: list[Stage]
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

    @property
    def headings(self) -> list[str]:
        """What stands above each column."""
        return [STAGES[stage] for stage in self.stages]


def score_tables(evaluations: Sequence[ScoreEntry]) -> list[ScoreTable]:
    """Returns a table for each task and split, in order of first occurrence."""
    splits: dict[tuple[str, str], list[ScoreEntry]] = {}
    order = list(STAGES)
    for entry in sorted(evaluations, key=lambda entry: order.index(entry.stage)):
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
        f"{name} {STAGES[entry.stage]}" if name in computed else name: why
        for entry in evaluations
        for name, why in entry.not_computed.items()
    }
    found: dict[str, list[str]] = {}
    for name, why in reasons.items():
        found.setdefault(why, []).append(name)
    return found


ARROWS = {True: "↑", False: "↓"}
BETTER = {True: "higher is better", False: "lower is better"}


@dataclass(frozen=True, kw_only=True)
class MetricWords:
    """A metric in words; all of them empty for one that dpft does not know."""

    arrow: str
    """Points to where the better values are; empty where neither direction is better."""
    better: str
    meaning: str
    """What the number is, and where that is defined."""


UNKNOWN = MetricWords(arrow="", better="", meaning="")


def metric_words(config: RunConfiguration, keys: Iterable[str]) -> dict[str, MetricWords]:
    """Returns what to say of each key of metrics.json.

    Args:
        config: Content of config.yaml; its task's metrics say which of two metrics a key is of.
        keys: Keys of ``metrics``.
    """
    known = METRICS.entries()
    own = [known[name] for name in _chosen(config) if name in known]
    by_key = {spec.reported_as: spec for spec in [*known.values(), *own]}
    return {key: _words(by_key[key]) if key in by_key else UNKNOWN for key in keys}


def main_metric(config: RunConfiguration, keys: Sequence[str]) -> str | None:
    """Returns the key of the score to lead with: the task's first that is there.

    Args:
        config: Content of config.yaml.
        keys: Keys of ``metrics`` of an evaluation.

    Returns:
        None where no metric says which of two values is better.
    """
    known = METRICS.entries()
    chosen = [known[name].reported_as for name in _chosen(config) if name in known]
    words = metric_words(config, keys)
    return next((key for key in [*chosen, *keys] if key in words and words[key].arrow), None)


def _chosen(config: RunConfiguration) -> Sequence[str]:
    return config.task.metrics or ()


def _words(spec: MetricSpec) -> MetricWords:
    meaning = f"{spec.description} {spec.citation}"
    if spec.better is None:
        return MetricWords(arrow="", better="", meaning=meaning)
    higher = spec.better == HIGHER
    return MetricWords(arrow=ARROWS[higher], better=BETTER[higher], meaning=meaning)
