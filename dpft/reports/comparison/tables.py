"""Tables of many runs: a row for each setting, scores as mean ± standard deviation over seeds.

The best are marked by a two-sample test, as in Table 1 of Li et al. 2022. They set "best numbers
based on two-sample test for each privacy level" in bold and name no test. Here it is Welch's t-test
(Welch 1947), two-sided at the 5 % level, for runs over seeds need not vary alike under two
settings. It is not corrected for how many settings are compared.
"""

import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpft.privacy.accounting.summary import delta_text, eps_text
from dpft.records.privacy_file import guarantee
from dpft.records.promises import PrivateRun
from dpft.records.scores import ScoreEntry
from dpft.reports.comparison.sweeps import NOT_PRIVATE, Setting, ordered
from dpft.reports.run.run_record import RunRecord

LEVEL = 0.05
LOWER_IS_BETTER = frozenset({"perplexity"})
NEITHER_IS_BETTER = frozenset({"mean_length"})
BOLD_NOTE = (
    "Bold: within one privacy level, the best mean and every one that Welch's t-test (two-sided,"
    " 5 %, not corrected for the number of comparisons) does not tell from it, if it tells any"
    " apart; it needs at least two runs of each setting."
)


def best(scores: Mapping[int, Sequence[float]], metric: str) -> set[int]:
    """Returns the settings whose scores are best; none where the test tells none apart.

    Args:
        scores: Setting to its runs' scores.
        metric: What the scores are of.
    """
    if metric in NEITHER_IS_BETTER or len(scores) < 2 or min(map(len, scores.values())) < 2:
        return set()
    sign = -1 if metric in LOWER_IS_BETTER else 1
    leader = max(scores, key=lambda setting: sign * statistics.fmean(scores[setting]))
    alike = {
        setting
        for setting, values in scores.items()
        if setting == leader or p_value(scores[leader], values) >= LEVEL
    }
    return alike if len(alike) < len(scores) else set()


def p_value(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns the two-sided p-value of Welch's t-test; at least two scores each.

    Where neither side varies at all, it is 0 for two values and 1 for one.
    """
    from scipy import stats

    if statistics.pvariance(one) == statistics.pvariance(other) == 0:
        return 1.0 if one[0] == other[0] else 0.0
    with warnings.catch_warnings():
        # of seeds that score all but alike, whose p-value is then 0 or 1 all the same
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)
        return float(stats.ttest_ind(one, other, equal_var=False).pvalue)


"""One evaluation of metrics.json."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One setting's scores by one metric."""

    values: tuple[float, ...]
    """A score for each run."""
    bold: bool = False

    @property
    def mean(self) -> float:
        """Mean over the runs."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over the runs; None for a single one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        spread = "" if self.deviation is None else f" ± {self.deviation:.3f}"
        return f"{self.mean:.3f}{spread}"


@dataclass(frozen=True, kw_only=True)
class Split:
    """The scores of all settings on one split of one task."""

    task: str
    name: str
    public: bool
    """Whether every run scored a public split."""
    metrics: list[str]
    cells: dict[str, dict[int, Cell]]
    """Scores by metric and by the number of the setting."""
    before: dict[str, dict[int, float]]
    """Mean scores before fine-tuning, by the same two, of the runs that were scored then."""


@dataclass(frozen=True, kw_only=True)
class Pivot:
    """One metric over one key or two."""

    metric: str
    row_key: str
    column_key: str | None
    """None: the one column is the metric."""
    fixed: str
    """The other keys' values, in words; empty where there are none."""
    rows: list[str]
    columns: list[str]
    cells: list[list[Cell | None]]
    settings: list[list[int | None]]
    """The number of each cell's setting."""

    @property
    def heading(self) -> str:
        """What the table shows, in words."""
        over = self.row_key if self.column_key is None else f"{self.row_key} × {self.column_key}"
        return f"{self.metric}: {over}{f', {self.fixed}' if self.fixed else ''}"


def split_tables(settings: Sequence[Setting]) -> list[Split]:
    """Returns the scores after fine-tuning, for each task and split in order of occurrence."""
    places = dict.fromkeys(
        (entry.task, entry.split)
        for setting in settings
        for run in setting.runs
        for entry in run.after()
        if entry.metrics
    )
    return [_split(settings, task, name) for task, name in places]


def pivots(
    split: Split,
    settings: Sequence[Setting],
    metric: str,
    keys: tuple[str, ...],
    others: Sequence[str] = (),
) -> list[Pivot]:
    """Returns one metric over one key or two, a table for each combination of the others' values.

    Args:
        split: Whose scores.
        settings: All of them.
        metric: One of the split's.
        keys: That of the rows, and that of the columns where there is one.
        others: The keys that are held fixed within a table.

    Returns:
        None at all where a cell would hold two settings.
    """
    tables: dict[str, dict[tuple[str, str], int]] = {}
    for number in split.cells[metric]:
        setting = settings[number]
        fixed = ", ".join(f"{key} = {setting.label(key)}" for key in others)
        found = tables.setdefault(fixed, {})
        place = (setting.label(keys[0]), setting.label(keys[1]) if keys[1:] else metric)
        if place in found:
            return []
        found[place] = number
    return [_pivot(split, metric, keys, fixed, tables[fixed]) for fixed in ordered(tables)]


def _pivot(
    split: Split,
    metric: str,
    keys: tuple[str, ...],
    fixed: str,
    found: Mapping[tuple[str, str], int],
) -> Pivot:
    rows, columns = (ordered(place[side] for place in found) for side in (0, 1))
    numbers = [[found.get((row, column)) for column in columns] for row in rows]
    scores = split.cells[metric]
    return Pivot(
        metric=metric,
        row_key=keys[0],
        column_key=keys[1] if keys[1:] else None,
        fixed=fixed,
        rows=rows,
        columns=columns,
        cells=[[None if one is None else scores[one] for one in row] for row in numbers],
        settings=numbers,
    )


def basis(privacy: PrivateRun) -> str:
    """Returns by whom and at which delta a private run's ``guarantee`` holds."""
    by = privacy.accountant
    if privacy.tokenizer is not None:
        by += ", its tokenizer included,"
    return f"{by} at δ = {delta_text(guarantee(privacy)[1])}"


def bases(runs: Iterable[RunRecord]) -> set[str]:
    """Returns the ``basis`` of each private run: of epsilons that compare there is one."""
    return {basis(run.privacy) for run in runs if isinstance(run.privacy, PrivateRun)}


def printed_epsilon(runs: Sequence[RunRecord], *, with_basis: bool = False) -> str:
    """Returns the largest epsilon of the runs, rounded up.

    Args:
        runs: Of one setting.
        with_basis: Whether to say by whom and at which delta it is, since others are otherwise.
    """
    private = [run.privacy for run in runs if isinstance(run.privacy, PrivateRun)]
    if len(private) < len(runs):
        norms = {run.privacy.max_grad_norm for run in runs}
        return NOT_PRIVATE if None in norms else f"{NOT_PRIVATE}, clipped"
    most = max(private, key=lambda each: guarantee(each)[0])
    largest = eps_text(guarantee(most)[0]) + (f" (by {basis(most)})" if with_basis else "")
    seeded = not all(each.private for each in private)
    return f"{largest} ({NOT_PRIVATE}: noise_seed)" if seeded else largest


def parameters(run: RunRecord) -> tuple[str, str]:
    """Returns the number of trained parameters, and their share of all."""
    trainable, total = run.privacy.trainable_parameters, run.privacy.total_parameters
    return f"{trainable:,}", f"{trainable / total:.2%}"


def _split(settings: Sequence[Setting], task: str, name: str) -> Split:
    entries = _entries(settings, RunRecord.after, task, name)
    all_entries = [entry for found in entries.values() for entry in found if entry.metrics]
    metrics = list(dict.fromkeys(metric for entry in all_entries for metric in entry.metrics))
    earlier = _entries(settings, RunRecord.before, task, name)
    return Split(
        task=task,
        name=name,
        public=all(entry.split_is_public for entry in all_entries),
        metrics=metrics,
        cells={metric: _cells(settings, entries, metric) for metric in metrics},
        before={
            metric: {
                number: statistics.fmean(values)
                for number, values in _scores(earlier, metric).items()
            }
            for metric in metrics
        },
    )


def _entries(
    settings: Sequence[Setting],
    stage: Callable[[RunRecord], list[ScoreEntry]],
    task: str,
    name: str,
) -> dict[int, list[ScoreEntry]]:
    """Returns each setting's evaluations of one stage on one split."""
    return {
        number: [
            entry
            for run in setting.runs
            for entry in stage(run)
            if (entry.task, entry.split) == (task, name)
        ]
        for number, setting in enumerate(settings)
    }


def _scores(
    entries: Mapping[int, Sequence[ScoreEntry]], metric: str
) -> dict[int, tuple[float, ...]]:
    """Returns the scores by one metric, of the settings that have any."""
    scores = {
        number: tuple(entry.metrics[metric] for entry in found if metric in entry.metrics)
        for number, found in entries.items()
    }
    return {number: values for number, values in scores.items() if values}


def _cells(
    settings: Sequence[Setting], entries: Mapping[int, Sequence[ScoreEntry]], metric: str
) -> dict[int, Cell]:
    scores = _scores(entries, metric)
    bold: set[int] = set()
    for level in dict.fromkeys(settings[number].level for number in scores):
        rivals = {n: values for n, values in scores.items() if settings[n].level == level}
        bold |= best(rivals, metric)
    return {number: Cell(values=values, bold=number in bold) for number, values in scores.items()}
