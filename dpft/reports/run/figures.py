"""The figures of a run's page: the ones to be read from afar, what epsilon means, and confusions.

On public splits of a classifier the page shows which class was taken for which, as a heat map or as
pairs, and images to look at.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from dpft.privacy.accounting.interpretation import most_right
from dpft.privacy.accounting.summary import figure_text
from dpft.privacy.plan import EXAMPLE
from dpft.records.configuration import RunConfiguration
from dpft.records.privacy_file import (
    COMPUTABLE,
    RunPrivacy,
    Vocabulary,
    guarantee,
    is_promised,
)
from dpft.records.promises import PrivateRun
from dpft.records.scores import PRIVATE_SPLIT, ConfusedClasses, ScoreEntry
from dpft.reports.pages import digits
from dpft.reports.plots import heat_map
from dpft.reports.run.scores import ScoreTable, main_metric, metric_words
from dpft.run_folder import WRONG_IMAGES

SOURCE = "Kairouz et al. 2015, arXiv 1311.0776"
MOSTLY_GUESSING = 75.0
"""Percent up to which the best guess of membership is nearer to a coin's than to certainty."""
Tone = Literal["good", "fair", "bad"]
"""How a promise is colored: green, amber, red."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number or a word in large letters."""

    label: str
    value: str
    before: str = ""
    """What the value was before training, where that is known."""
    note: str = ""
    """What the value cannot be read without, in small letters."""
    weak: bool = False
    """Whether it is a warning: nothing is promised, or the value is not covered by epsilon."""
    tone: Tone | None = None
    """That of the promise, for epsilon alone."""


def figures(
    config: RunConfiguration, privacy: RunPrivacy, tables: Sequence[ScoreTable]
) -> list[Figure]:
    """Returns epsilon, delta, the unit and the main score, or that nothing is promised.

    Args:
        config: Content of config.yaml.
        privacy: Content of privacy.json.
        tables: The run's scores.
    """
    return [*_promise(privacy), *_main_score(config, tables)]


def meaning(privacy: RunPrivacy) -> str | None:
    """Returns in a sentence what epsilon means to who is in the data; None without a promise."""
    if not is_promised(privacy):
        return None
    whose = _whose(privacy.unit)
    right = most_right(*guarantee(privacy))
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


def tone(privacy: RunPrivacy | Vocabulary) -> Tone:
    """Returns the color of a run's promise, red where there is none."""
    return tone_of(guarantee(privacy) if is_promised(privacy) else None)


def tone_of(promise: tuple[float, float] | None) -> Tone:
    """Returns the color of a promise, by what it allows whoever tests for membership.

    Green says that the best guess is nearer to a coin's than to certainty (epsilon of about 1.09),
    red that it is as good as certain, or that nothing is promised.

    Args:
        promise: Epsilon and delta; None: nothing is promised.
    """
    right = None if promise is None else most_right(*promise)
    if right is None:
        return "bad"
    return "good" if float(right) <= MOSTLY_GUESSING else "fair"


def _whose(unit: str) -> str:
    return "one example was" if unit == EXAMPLE else f"the rows of one `{unit}` were"


def _promise(privacy: RunPrivacy) -> list[Figure]:
    if not isinstance(privacy, PrivateRun):
        clipped = ", clipped, no noise" if privacy.max_grad_norm is not None else ""
        return [Figure(label="privacy", value="none", note=f"privacy=none{clipped}", weak=True)]
    if COMPUTABLE in privacy.warnings:
        note = "its noise can be computed (SECURITY.md)"
        return [Figure(label="privacy", value="none", note=note, weak=True)]
    if not privacy.private:
        note = "its noise was predictable (privacy.noise_seed)"
        return [Figure(label="privacy", value="none", note=note, weak=True)]
    epsilon, delta = (figure_text(value) for value in guarantee(privacy))
    note = f"at most, by {privacy.accountant}"
    if privacy.tokenizer is not None:
        note = f"at most, its tokenizer included; {figure_text(privacy.epsilon)} of the training"
    return [
        Figure(label="ε", value=epsilon, note=note, tone=tone(privacy)),
        Figure(label="δ", value=delta, note="at most"),
        Figure(
            label="unit",
            value=privacy.unit,
            note=f"one of {privacy.num_examples:,}, added or removed",
        ),
    ]


def _main_score(config: RunConfiguration, tables: Sequence[ScoreTable]) -> list[Figure]:
    """Returns the first split's main score after training; none where there is none."""
    table = next((table for table in tables if table.rows and table.stages[-1] == "after"), None)
    if table is None:
        return []
    rows = dict(table.rows)
    key = main_metric(config, list(rows))
    if key is None or (after := rows[key][-1]) is None:
        return []
    before = rows[key][0] if table.stages[0] == "before" else None
    words = metric_words(config, [key])[key]
    return [
        Figure(
            label=f"{key} {words.arrow}",
            value=digits(after, table.digits),
            before="" if before is None else digits(before, table.digits),
            note=f"split {table.split}" if table.public else PRIVATE_SPLIT,
            weak=not table.public,
        )
    ]


MOST_CLASSES = 20
"""More do not fit into a heat map whose numbers can be read."""
PAIRS = 10


@dataclass(frozen=True, kw_only=True)
class Confusion:
    """Of one split, after training."""

    heading: str
    plot: Markup | None
    """A heat map; None of many classes."""
    pairs: list[tuple[str, str, int]]
    """The right class, what it was taken for and how often, the most frequent first."""
    picture: str
    """Some wrongly classed images, as an address that holds them; empty: there are none."""


def confusions(evaluations: Sequence[ScoreEntry], pictures: Mapping[str, bytes]) -> list[Confusion]:
    """Returns the confusion of each split that is public and has classes.

    Args:
        evaluations: Entries of metrics.json.
        pictures: Images of them, by the name of their file.
    """
    last = [entry for entry in evaluations if entry.stage == "after" and entry.confusion]
    return [_confusion(entry, pictures, alone=len(last) == 1) for entry in last]


def confused_pairs(confusion: ConfusedClasses) -> list[tuple[str, str, int]]:
    """Returns the classes most often taken for another, the most frequent first.

    >>> confused_pairs(ConfusedClasses(labels=("a", "b"), counts=((5, 2), (3, 7))))
    [('b', 'a', 3), ('a', 'b', 2)]
    """
    labels = confusion.labels
    found = [
        (labels[right], labels[taken], count)
        for right, row in enumerate(confusion.counts)
        for taken, count in enumerate(row)
        if right != taken and count
    ]
    return sorted(found, key=lambda pair: -pair[2])[:PAIRS]


def _confusion(entry: ScoreEntry, pictures: Mapping[str, bytes], *, alone: bool) -> Confusion:
    assert entry.confusion is not None
    labels, counts = entry.confusion.labels, entry.confusion.counts
    heading = f"Which class was taken for which, {entry.task}, split {entry.split}"
    plot = None
    if len(labels) <= MOST_CLASSES:
        plot = heat_map(
            counts,
            name=f"confusion-{entry.split}",
            metric="images",
            rows=("right class", labels),
            columns=("taken for", labels),
            scale=(0, max(map(max, counts))),
        )
    return Confusion(
        heading=heading,
        plot=plot,
        pairs=confused_pairs(entry.confusion),
        picture=_picture(pictures, "" if alone else entry.split),
    )


def _picture(pictures: Mapping[str, bytes], part: str) -> str:
    name = WRONG_IMAGES if not part else f"_{part}.".join(WRONG_IMAGES.split("."))
    if name not in pictures:
        return ""
    return "data:image/png;base64," + base64.b64encode(pictures[name]).decode()
