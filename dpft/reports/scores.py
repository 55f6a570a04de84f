"""The tables of scores in a run's report.

The report states which direction of a metric is better and what the metric means. Of a private
split an entry of metrics.json may say no more than that its scores are in private/. For public
splits of a classifier the report lists the classes that are taken for each other most often; the
page has a heat map and images, too. A series of scores begins with those before training and ends
with those after it; epsilon beside them is that of the steps so far.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from dpft.config.schema import TrainConfig
from dpft.evaluation.metrics.base import METRICS, MetricSpec
from dpft.evaluation.scores import STAGES, ConfusedClasses, ScoreEntry, SplitScores, Stage
from dpft.privacy.accounting.interpretation import best_attack_accuracy
from dpft.privacy.accounting.summary import eps_text, round_up
from dpft.privacy.plan import EXAMPLE
from dpft.reports.privacy_json import PrivateRun, RunPrivacy, guarantee, is_promised
from dpft.reports.rendering import COLORS, draw_svg, heat_map
from dpft.run_folder import WRONG_IMAGES
from dpft.tasks.base import TASKS
from dpft.tasks.images import IMAGE, ImageTask
from dpft.training.progress_record import ProgressLine

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    """Return a table for each task and split, in order of first occurrence."""
    splits: dict[tuple[str, str], list[ScoreEntry]] = {}
    order = list(STAGES)
    for entry in sorted(evaluations, key=lambda entry: order.index(entry.stage)):
        splits.setdefault((entry.task, entry.split), []).append(entry)
    return [_table(task, split, entries) for (task, split), entries in splits.items()]


def _table(task: str, split: str, entries: Sequence[ScoreEntry]) -> ScoreTable:
    seen = [entry for entry in entries if entry.examples is not None or entry.digits is not None]
    names = dict.fromkeys(name for entry in seen for name in entry.metrics)
    return ScoreTable(
        task=task,
        split=split,
        public=all(entry.split_is_public for entry in seen),
        stages=[entry.stage for entry in seen],
        examples=[entry.examples for entry in seen if entry.examples is not None],
        rows=[(name, [entry.metrics.get(name) for entry in seen]) for name in names],
        not_computed=_not_computed(seen),
        texts=_shown_texts(entries),
        hidden=[entry.stage for entry in entries if entry not in seen],
        digits=next((entry.digits for entry in seen if entry.digits is not None), None),
    )


def _shown_texts(entries: Sequence[ScoreEntry]) -> list[ShownText]:
    """Return the texts of a split's entries; no texts unless every entry marks it as public."""
    if not all(entry.split_is_public for entry in entries):
        return []
    samples = {entry.stage: entry.samples or () for entry in entries}
    task_classes = [TASKS.entries().get(entry.task) for entry in entries]
    are_images = all(cls is not None and issubclass(cls, ImageTask) for cls in task_classes)
    named = _image_words if are_images else str
    before = {sample.input: sample.prediction for sample in samples.get("before", [])}
    return [
        ShownText(
            input=named(sample.input),
            before=before.get(sample.input),
            after=sample.prediction,
            reference=sample.reference,
        )
        for sample in samples.get("after", [])
    ]


def _image_words(name: str) -> str:
    """Return what an image is called: by its file, or, where it is none's, by its number alone."""
    number, _, file = name.partition(": ")
    place = f"image {number} of the split, counted from 0"
    return place if file == IMAGE else f"{file} ({place})"


def _not_computed(evaluations: Sequence[ScoreEntry]) -> dict[str, list[str]]:
    """Return the metrics without a value by reason; name the stage if another stage has a value."""
    computed = {name for entry in evaluations for name in entry.metrics}
    reasons = {
        f"{name} {STAGES[entry.stage]}" if name in computed else name: why
        for entry in evaluations
        for name, why in entry.not_computed.items()
    }
    by_reason: dict[str, list[str]] = {}
    for name, why in reasons.items():
        by_reason.setdefault(why, []).append(name)
    return by_reason


def specs_of(config: TrainConfig, keys: Iterable[str]) -> dict[str, MetricSpec]:
    """Return the metric of each key of metrics.json that dpft knows.

    Args:
        config: Content of config.yaml; its task's metrics decide between two metrics of one key.
        keys: Keys of ``metrics``.
    """
    registered = METRICS.entries()
    chosen = [registered[name] for name in config.task.metrics if name in registered]
    by_key = {spec.reported_as: spec for spec in [*registered.values(), *chosen]}
    return {key: by_key[key] for key in keys if key in by_key}


def main_metric(config: TrainConfig, keys: Sequence[str]) -> str | None:
    """Return the key of the leading score: the first of the task's metrics that has a better value.

    Returns:
        None if no metric has one.
    """
    registered = METRICS.entries()
    chosen = [registered[name].reported_as for name in config.task.metrics if name in registered]
    specs = specs_of(config, keys)
    return next((key for key in [*chosen, *keys] if key in specs and specs[key].better), None)


SOURCE = "Kairouz et al. 2015, arXiv 1311.0776"


def meaning(privacy: RunPrivacy) -> str | None:
    """Return in a sentence what epsilon means to who is in the data; None without a promise."""
    if not is_promised(privacy):
        return None
    unit = privacy.plan.unit
    whose = "one example was" if unit == EXAMPLE else f"the rows of one `{unit}` were"
    right = best_attack_accuracy(*guarantee(privacy))
    if right is None:
        return (
            "What ε allows: nearly everything. Whoever sees the model and knows all other records"
            f" may, for all that ε says, as good as always tell rightly whether {whose} trained on"
            f" ({SOURCE})."
        )
    return (
        "What ε allows: whoever sees the model, knows all other records and guesses whether"
        f" {whose} trained on is right at most **{right} %** of the time; a coin is right 50 % of"
        f" the time, where both answers are as likely ({SOURCE})."
    )


MOST_CLASSES = 20
"""More do not fit into a heat map whose numbers can be read."""
PAIRS = 10


def confused_entries(evaluations: Sequence[ScoreEntry]) -> list[ScoreEntry]:
    """Return the entries after training of the public splits that have classes."""
    return [entry for entry in evaluations if entry.stage == "after" and entry.confusion]


def confused_pairs(confusion: ConfusedClasses) -> list[tuple[str, str, int]]:
    """Return the pairs of classes that are confused most often, the most frequent first.

    >>> confused_pairs(ConfusedClasses(labels=("a", "b"), counts=((5, 2), (3, 7))))
    [('b', 'a', 3), ('a', 'b', 2)]
    """
    labels = confusion.labels
    pairs = [
        (labels[right], labels[predicted], count)
        for right, row in enumerate(confusion.counts)
        for predicted, count in enumerate(row)
        if right != predicted and count
    ]
    return sorted(pairs, key=lambda pair: -pair[2])[:PAIRS]


def confusion_figures(
    entry: ScoreEntry, pictures: Mapping[str, bytes], *, alone: bool
) -> list[Markup]:
    """Return a heat map of the confused classes, and the images that were classified wrongly.

    Args:
        entry: Scores of a public split that has classes.
        pictures: Images by the name of their file.
        alone: Whether no other split of the run has classes.
    """
    assert entry.confusion is not None
    labels, counts = entry.confusion.labels, entry.confusion.counts
    figures = []
    if len(labels) <= MOST_CLASSES:
        plot = heat_map(
            counts,
            name=f"confusion-{entry.split}",
            metric="images",
            rows=("right class", labels),
            columns=("taken for", labels),
            scale=(0, max(map(max, counts))),
        )
        figures.append(plot)
    name = WRONG_IMAGES if alone else f"_{entry.split}.".join(WRONG_IMAGES.split("."))
    if name in pictures:
        content = base64.b64encode(pictures[name]).decode()
        alternative = "Images of this split that were classed wrongly."
        address = f"data:image/png;base64,{content}"
        figures.append(Markup('<img src="{}" alt="{}">').format(address, alternative))
    return figures


MOST_TICKS = 8
Row = tuple[int, float | None, Mapping[str, float]]
"""Steps taken, an upper bound of what they spent, None without privacy, and the scores."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """The scores of one split at several steps."""

    task: str
    split: str
    metrics: list[str]
    rows: list[Row]

    def printed(self) -> list[tuple[str, str, list[float | None]]]:
        """Return each row's step, epsilon and scores, as a table has them."""
        return [
            (
                str(step),
                "–" if epsilon is None else eps_text(epsilon),
                [scores.get(m) for m in self.metrics],
            )
            for step, epsilon, scores in self.rows
        ]


def series_of(
    progress: Sequence[ProgressLine], privacy: RunPrivacy, evaluations: Sequence[ScoreEntry]
) -> list[Series]:
    """Return a series for each task and public split that was scored during training."""
    private = {entry.place[:2] for entry in evaluations if not entry.split_is_public}
    scheduled = {(entry.task, entry.split) for line in progress for entry in line.evaluations or ()}
    rows_by_split: dict[tuple[str, str], list[Row]] = {}
    for step, epsilon, entries in _points(progress, privacy, evaluations):
        for entry in entries:
            place = (entry.task, entry.split)
            if place in scheduled - private:
                rows_by_split.setdefault(place, []).append((step, epsilon, entry.metrics))
    return [
        Series(
            task=task,
            split=split,
            metrics=list(dict.fromkeys(name for _, _, scores in rows for name in scores)),
            rows=_never_falling(rows),
        )
        for (task, split), rows in rows_by_split.items()
    ]


def series_plot(series: Series, config: TrainConfig, name: str) -> Markup | None:
    """Return the main score against steps, epsilon above them; None where no metric leads."""
    metric = main_metric(config, series.metrics)
    if metric is None:
        return None
    rows = [(step, eps, scores[metric]) for step, eps, scores in series.rows if metric in scores]
    if len(rows) < 2:
        return None
    from matplotlib.ticker import MaxNLocator

    def draw(axes: "Axes") -> None:
        steps, scores = [step for step, _, _ in rows], [score for _, _, score in rows]
        axes.plot(steps, scores, "o-", color=COLORS[0], clip_on=False)
        axes.set(xlabel="steps taken", ylabel=metric, xlim=(0, steps[-1]))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        spent = [(step, eps) for step, eps, _ in rows if eps is not None]
        if spent:
            shown = spent[:: -(-len(spent) // MOST_TICKS)]
            above = axes.secondary_xaxis("top")
            ticks = [f"{round_up(epsilon, 2):.2f}" for _, epsilon in shown]
            above.set_xticks([step for step, _ in shown], ticks)
            above.set_xlabel("ε spent, at most")

    first, last = rows[0], rows[-1]
    label = (
        f"{metric} on split {series.split} from {first[2]:.4g} after {first[0]} steps to"
        f" {last[2]:.4g} after {last[0]}"
    )
    return draw_svg(draw, name=name, label=label)


def _points(
    progress: Sequence[ProgressLine], privacy: RunPrivacy, evaluations: Sequence[ScoreEntry]
) -> list[tuple[int, float | None, Sequence[SplitScores]]]:
    """Return step, epsilon and entries of each point, before and after training among them."""
    ends: dict[str, tuple[int, float | None]]
    ends = {"before": (0, None), "after": (privacy.plan.steps, None)}
    if isinstance(privacy, PrivateRun):
        last = min(privacy.plan.steps, privacy.steps_taken)
        ends = {"before": (0, 0.0), "after": (last, guarantee(privacy)[0])}
    points: list[tuple[int, float | None, Sequence[SplitScores]]] = [
        (line.step, line.epsilon, line.evaluations or ()) for line in progress
    ]
    shown = [entry for entry in evaluations if entry.metrics and entry.stage in ends]
    points += [(*ends[entry.stage], [entry]) for entry in shown]
    return sorted(points, key=lambda point: point[0])


def _never_falling(rows: list[Row]) -> list[Row]:
    """Return the rows with the least bound that holds: fewer steps spend no more than more do."""
    bounded, least = [], float("inf")
    for step, epsilon, scores in reversed(rows):
        least = least if epsilon is None else min(least, epsilon)
        bounded.append((step, None if epsilon is None else least, scores))
    return bounded[::-1]
