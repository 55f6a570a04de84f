"""Which class was taken for which, on public splits: a heat map or pairs, and images to look at."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from dpft.records.scores import ConfusedClasses, ScoreEntry
from dpft.reports.plots import heat_map
from dpft.run_folder import WRONG_IMAGES

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


def confusions(evaluations: Sequence[ScoreEntry], folder: Path) -> list[Confusion]:
    """Returns the confusion of each split that is public and has classes.

    Args:
        evaluations: Entries of metrics.json.
        folder: Of the run, which may hold images of them.
    """
    last = [entry for entry in evaluations if entry.stage == "after" and entry.confusion]
    return [_confusion(entry, folder, alone=len(last) == 1) for entry in last]


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


def _confusion(entry: ScoreEntry, folder: Path, *, alone: bool) -> Confusion:
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
        picture=_picture(folder, "" if alone else entry.split),
    )


def _picture(folder: Path, part: str) -> str:
    name = WRONG_IMAGES if not part else f"_{part}.".join(WRONG_IMAGES.split("."))
    if not (folder / name).is_file():
        return ""
    return "data:image/png;base64," + base64.b64encode((folder / name).read_bytes()).decode()
