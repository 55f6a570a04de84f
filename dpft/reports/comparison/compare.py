"""Many runs put in order: which settings they have, what they cost, and what is shown of them.

What runs on the same records cost together is their sum, of epsilons and of deltas (Dwork & Roth
2014, Theorem 3.16): a bound that always holds and is never tight. ``dpft account runs=…`` composes
the mechanisms themselves.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpft.errors import InputError
from dpft.privacy.accounting.summary import delta_text, eps_text
from dpft.records.privacy_file import guarantee
from dpft.records.promises import PrivateRun
from dpft.reports.comparison.sweeps import EPS, Setting, group_runs, swept_keys
from dpft.reports.comparison.tables import Pivot, Split, bases, pivots, split_tables
from dpft.reports.run.run_record import RunRecord

STATED = "as its run's privacy.json states it; `dpft account run=…` computes it from the ledger."
APART = (
    "The ε here are not all by one accountant at one δ, so each names its own, and none compares to"
    " one of another δ. Each is"
)


def composed_costs(records: Sequence[RunRecord], unfinished: int) -> list[str]:
    """Returns what the runs on each data set cost together, a sentence each.

    That runs of one task from one source share their records is assumed, and said.

    Args:
        records: The finished runs.
        unfinished: How many more runs have begun.
    """
    data: dict[tuple[str, ...], list[RunRecord]] = {}
    for record in records:
        task = record.config.task
        place = (task.name, str(task.source), str(task.data_dir))
        data.setdefault(place, []).append(record)
    sentences = [_cost(place[0], runs) for place, runs in data.items()]
    if unfinished:
        runs = "run has" if unfinished == 1 else "runs have"
        sentences.append(
            f"{unfinished} more {runs} begun and left no report: what was spent there is in none of"
            " these sums; the ledgers tell it."
        )
    found = bases(records)
    if found:
        whose = f"Every ε here is by {found.pop()}," if len(found) == 1 else APART
        sentences.append(f"{whose} {STATED}")
    return sentences


def _cost(task: str, runs: Sequence[RunRecord]) -> str:
    promises = [run.privacy for run in runs]
    private = [each for each in promises if isinstance(each, PrivateRun) and each.private]
    if len(private) < len(runs):
        return (
            f"{task}: {len(runs) - len(private)} of {len(runs)} runs were not private; nothing"
            " bounds what all of them together tell of their records."
        )
    if len({(each.unit, each.neighboring_relation) for each in private}) > 1:
        return (
            f"{task}: the {len(runs)} runs protect different units or neighboring relations, so"
            " their ε cannot be added up."
        )
    if len(runs) == 1:
        return f"{task}: one run, so its ε is the whole cost, if no other used these records."
    costs = [guarantee(each) for each in private]
    epsilon = eps_text(math.fsum(epsilon for epsilon, _ in costs))
    delta = delta_text(math.fsum(delta for _, delta in costs))
    return (
        f"{task}: {len(runs)} runs, taken to be on the same records. Whoever sees all of them, or"
        f" one chosen by its score, is covered by basic composition: their ε add up to"
        f" {epsilon}, their δ to {delta}; `dpft account runs=…` composes them by pld at the"
        " smallest of their δ, to a smaller ε."
    )


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Many runs in groups of one setting each, with what is shown of them."""

    settings: list[Setting]
    keys: list[str]
    """Keys in which the settings differ."""
    axes: tuple[str, ...] | None
    """Keys of the rows and of the columns of tables over two keys; one: of the rows alone."""
    fixed: list[str]
    """Keys whose values are fixed within each of these tables, a third one first."""
    splits: list[Split]
    metrics: tuple[str, ...] | None
    """Metrics shown in these tables and plots; None: each split's first."""
    costs: list[str]
    left_out: list[str]
    """Folders of runs without a report."""

    def shown(self, split: Split) -> list[str]:
        """Returns the metrics that are shown over keys and drawn."""
        return [name for name in self.metrics or split.metrics[:1] if name in split.metrics]

    def pivots(self, split: Split) -> list[Pivot]:
        """Returns a split's tables over one or two keys."""
        if self.axes is None:
            return []
        axes, metrics = self.axes, self.shown(split)
        tables = (pivots(split, self.settings, name, axes, self.fixed) for name in metrics)
        return [table for of_metric in tables for table in of_metric]


def compare(
    records: Sequence[RunRecord],
    *,
    unfinished: Sequence[Path] = (),
    over: tuple[str, ...] = (),
    metrics: tuple[str, ...] | None = None,
) -> Comparison:
    """Returns the runs in groups of one setting each, with what is shown of them.

    Args:
        records: Of finished runs, at least one.
        unfinished: Folders of others.
        over: Keys of the rows, of the columns, and of tables; fewer than three will do, and of
            none they are chosen.
        metrics: Those of these tables and plots; None: each split's first.

    Raises:
        InputError: A key or a metric is in no run.
    """
    settings = group_runs(records, kept=over)
    keys = swept_keys(settings)
    for key in over:
        if not any(key in setting.values for setting in settings):
            raise InputError(
                f"over must name keys of the runs' configuration, got {key!r}; those in which the"
                f" runs differ are {', '.join(keys) or 'none'}."
            )
    splits = split_tables(settings)
    known = {name for split in splits for name in split.metrics}
    for name in metrics or ():
        if name not in known:
            raise InputError(
                f"metric must be one that the runs were scored by, got {name!r}; there are"
                f" {', '.join(sorted(known)) or 'none'}."
            )
    return Comparison(
        settings=settings,
        keys=[*keys, *(key for key in over if key not in keys)],
        axes=over[:2] if over else default_axes(keys),
        fixed=[*over[2:], *(key for key in keys if key not in over)] if over else [],
        splits=splits,
        metrics=metrics,
        costs=composed_costs(records, len(unfinished)),
        left_out=[str(folder) for folder in unfinished],
    )


def default_axes(keys: Sequence[str]) -> tuple[str, ...] | None:
    """Returns the keys of rows and columns: method × ε if both differ, else one or two that do."""
    names = [key for key in ("method.name", "model.name", "task.name") if key in keys]
    if EPS in keys and names:
        return names[0], EPS
    return tuple(keys) if len(keys) in (1, 2) else None
