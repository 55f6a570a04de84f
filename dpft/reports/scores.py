"""Tables and plots of the scores in a run's report.

The report states the meaning of each metric and its better direction. For a private split, an entry
of metrics.json may state only that the scores are in private/. For a classifier with a public
split, the report lists the most frequent confusions; the page adds a heat map and misclassified
images. A series of scores starts before training and ends after training, and each of its points
has the ε of the steps up to that point.
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
from dpft.reports.rendering import COLORS, draw_svg, line
from dpft.tasks.base import TASKS, Task
from dpft.tasks.images import ImageTask
from dpft.training.progress_record import ProgressLine

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, kw_only=True)
class ShownText:
    """One input of a public split with the outputs of the model, which may be empty texts."""

    input: str
    before: str | None
    """Output before training; None if there is none for this input."""
    after: str
    """Output after training."""
    reference: str
    """One reference; empty if the split has no references."""


@dataclass(frozen=True, kw_only=True)
class ScoreTable:
    """The scores on one split, with a column for each stage that is shown."""

    task: str
    split: str
    public: bool
    stages: list[Stage]
    examples: list[int]
    """Number of distinct inputs scored at each stage; empty if the number is private."""
    rows: list[tuple[str, list[float | None]]]
    """Key of each metric in metrics.json, and its value at each stage."""
    not_computed: dict[str, list[str]]
    """Metrics without a value, by the reason."""
    texts: list[ShownText]
    """Some outputs after training; empty for a private split and for images."""
    hidden: list[str]
    """Stages whose scores are only in private/."""
    digits: int | None
    """Number of significant digits of rounded scores; None for unrounded scores."""

    @property
    def headings(self) -> list[str]:
        """The headings of the columns."""
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
    """Return the texts of a split's entries; empty unless all entries mark the split as public."""
    is_public = all(entry.split_is_public for entry in entries)
    if not is_public or issubclass(TASKS.entries().get(entries[0].task, Task), ImageTask):
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
    """Return the metrics without a value, by reason.

    If a metric has a value at another stage, its name is followed by the stage without a value.
    """
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
    """Return the specification of the metric for each key that dpft knows.

    Args:
        config: Content of config.yaml; if two metrics share a key, the metric of the configured
            task is returned.
        keys: Keys of ``metrics``.
    """
    registered = METRICS.entries()
    chosen = [registered[name] for name in config.task.metrics if name in registered]
    by_key = {spec.reported_as: spec for spec in [*registered.values(), *chosen]}
    return {key: by_key[key] for key in keys if key in by_key}


DATA_TITLES = {
    **{name: name.upper() for name in ("dart", "e2e", "mnli", "mrpc", "qnli", "qqp", "rte")},
    **{"celeba": "CelebA", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "cola": "CoLA"},
    **{"corpus": "a text corpus", "custom": "custom data", "glue_mixture": "GLUE"},
    **{"images": "custom images", "personachat": "PersonaChat", "preference": "preference data"},
    **{"sst2": "SST-2", "stsb": "STS-B"},
}


def data_title(task: str) -> str:
    """Return the name of a task's data in the spelling of its paper, such as ``E2E``."""
    return DATA_TITLES.get(task, task)


def scores_heading(what: str, task: str, split: str) -> str:
    """Return the heading of a section on one split."""
    return f"{what} on {line(data_title(task))}, {line(split)} split"


def metric_heading(config: TrainConfig, key: str) -> str:
    """Return the heading of a metric in tables; a key of a published result may name its split."""
    split, _, name = key.rpartition(".")
    spec = specs_of(config, [name]).get(name)
    return key if spec is None else f"{split} {spec.heading}".strip()


def main_metric(config: TrainConfig, keys: Sequence[str]) -> str | None:
    """Return the key of the task's first metric for which higher or lower is better, or None."""
    registered = METRICS.entries()
    chosen = [registered[name].reported_as for name in config.task.metrics if name in registered]
    specs = specs_of(config, keys)
    return next((key for key in [*chosen, *keys] if key in specs and specs[key].better), None)


SOURCE = "Kairouz et al. 2015, arXiv 1311.0776"


def meaning(privacy: RunPrivacy) -> str | None:
    """Return a sentence on the meaning of ε for a person in the data; None without a guarantee."""
    if not is_promised(privacy):
        return None
    unit = privacy.plan.unit
    whose = "one example was" if unit == EXAMPLE else f"the rows of one `{unit}` were"
    right = best_attack_accuracy(*guarantee(privacy))
    attacker = "an attacker who has the model and knows all other records"
    if right is None:
        return (
            f"What this means: almost no protection. With this ε, {attacker} may almost always"
            f" guess correctly whether {whose} used for training ({SOURCE})."
        )
    return (
        f"What this means: suppose {attacker} guesses whether {whose} used for training, and both"
        f" answers are equally likely. The guess is correct at most **{right} %** of the time;"
        f" a random guess is correct 50 % of the time ({SOURCE})."
    )


MOST_CLASSES = 20
"""Largest number of classes for which the numbers in a heat map are readable."""
PAIRS = 10
"""Number of pairs of classes in the table of confusions."""


def confused_entries(evaluations: Sequence[ScoreEntry]) -> list[ScoreEntry]:
    """Return the entries after training of public splits with classes."""
    return [entry for entry in evaluations if entry.stage == "after" and entry.confusion]


def confused_pairs(confusion: ConfusedClasses) -> list[tuple[str, str, int]]:
    """Return the true class, predicted class and count of each of the most frequent confusions.

    >>> confused_pairs(ConfusedClasses(labels=("a", "b"), counts=((5, 2), (3, 7))))
    [('b', 'a', 3), ('a', 'b', 2)]
    """
    labels = confusion.labels
    pairs = [
        (labels[true], labels[predicted], count)
        for true, row in enumerate(confusion.counts)
        for predicted, count in enumerate(row)
        if true != predicted and count
    ]
    return sorted(pairs, key=lambda pair: -pair[2])[:PAIRS]


def confusion_figures(entry: ScoreEntry, images: Sequence[tuple[str, str, bytes]]) -> list[Markup]:
    """Return a heat map of the confusions, and the misclassified images with their classes.

    Args:
        entry: Scores of a public split with classes.
        images: True class, predicted class and PNG file of some misclassified images.
    """
    assert entry.confusion is not None
    figures = []
    if len(entry.confusion.labels) <= MOST_CLASSES:
        figures.append(heat_map(entry.confusion, name=f"confusion-{entry.split}"))
    tile = Markup('<span><img src="data:image/png;base64,{}" alt=""> {} → {}</span>\n')
    tiles = [
        tile.format(base64.b64encode(content).decode(), true, predicted)
        for true, predicted, content in images
    ]
    caption = Markup("<figcaption>Misclassified images: true → predicted</figcaption>\n")
    return [*figures, caption + Markup().join(tiles)] if tiles else figures


def heat_map(confusion: ConfusedClasses, *, name: str) -> Markup:
    """Return the counts of a confusion matrix as a grid of colors with the numbers in it."""
    labels, counts = confusion.labels, confusion.counts
    most = max(map(max, counts))

    def draw(axes: "Axes") -> None:
        # pcolormesh draws shapes; imshow would embed pixels into the SVG.
        axes.pcolormesh(counts, cmap="viridis", vmin=0, vmax=most, edgecolors="white", linewidth=1)
        for y, row in enumerate(counts):
            for x, count in enumerate(row):
                color = "black" if count > most / 2 else "white"
                axes.text(x + 0.5, y + 0.5, str(count), ha="center", va="center", color=color)
        ticks = [place + 0.5 for place in range(len(labels))]
        axes.set_xticks(ticks, labels)
        axes.set_yticks(ticks, labels)
        axes.set(xlabel="predicted class", ylabel="true class", title="images")
        axes.grid(visible=False)
        axes.invert_yaxis()

    label = "images by true and predicted class, as a heat map"
    return draw_svg(draw, name=name, label=label, width=5.4, height=1.4 + 0.36 * len(labels))


MOST_TICKS = 8
"""Maximum number of ε values on the upper axis of a plot of scores."""
Row = tuple[int, float | None, Mapping[str, float]]
"""Number of steps, an upper bound of the ε of these steps (None without privacy), and the
scores."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """The scores of one split after several numbers of steps."""

    task: str
    split: str
    metrics: list[str]
    rows: list[Row]

    def printed(self) -> list[tuple[str, str, list[float | None]]]:
        """Return step, ε and scores of each row, as a table shows them."""
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
    """Return a plot of the main score against steps and ε, or None without enough scores."""
    metric = main_metric(config, series.metrics)
    if metric is None:
        return None
    rows = [(step, eps, scores[metric]) for step, eps, scores in series.rows if metric in scores]
    if len(rows) < 2:
        return None
    from matplotlib.ticker import MaxNLocator

    heading = metric_heading(config, metric)

    def draw(axes: "Axes") -> None:
        steps, scores = [step for step, _, _ in rows], [score for _, _, score in rows]
        axes.plot(steps, scores, "o-", color=COLORS[0], clip_on=False)
        axes.set(xlabel="steps", ylabel=heading, xlim=(0, steps[-1]))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        spent = [(step, eps) for step, eps, _ in rows if eps is not None]
        if spent:
            shown = spent[:: -(-len(spent) // MOST_TICKS)]
            above = axes.secondary_xaxis("top")
            ticks = [f"{round_up(epsilon, 2):.2f}" for _, epsilon in shown]
            above.set_xticks([step for step, _ in shown], ticks)
            above.set_xlabel("ε (upper bound)")

    first, last = rows[0], rows[-1]
    label = (
        f"{heading} on split {series.split}: {first[2]:.4g} after {first[0]} steps,"
        f" {last[2]:.4g} after {last[0]} steps"
    )
    return draw_svg(draw, name=name, label=label, width=4.6, height=3.1)


def _points(
    progress: Sequence[ProgressLine], privacy: RunPrivacy, evaluations: Sequence[ScoreEntry]
) -> list[tuple[int, float | None, Sequence[SplitScores]]]:
    """Return step, ε and entries of each point, including the points before and after training."""
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
    """Return the rows with the smallest valid bounds of ε.

    A bound for more steps also holds for fewer steps, so each bound is lowered to the smallest
    later bound.
    """
    bounded, least = [], float("inf")
    for step, epsilon, scores in reversed(rows):
        least = least if epsilon is None else min(least, epsilon)
        bounded.append((step, None if epsilon is None else least, scores))
    return bounded[::-1]
