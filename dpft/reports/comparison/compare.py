"""Many runs put in order: which settings they have, what they cost, and what is shown of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpft.errors import InputError
from dpft.reports.comparison.composition import composed_costs
from dpft.reports.comparison.sweeps import EPS, Setting, group_runs, swept_keys
from dpft.reports.comparison.tables import Pivot, Split, pivots, split_tables
from dpft.reports.run.run_record import RunRecord


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
