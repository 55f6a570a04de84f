"""Many runs compared: which settings they have, scores over seeds, the best, and what they cost.

Runs of one setting differ in seeds alone, or in what changes speed and not the model: their scores
are averaged. Everything else tells settings apart, whether it was swept or not, so that no mean is
ever taken over two things.

The best are marked by a two-sample test, as in Table 1 of Li et al. 2022. They set "best numbers
based on two-sample test for each privacy level" in bold and name no test. Here it is Welch's t-test
(Welch 1947), two-sided at the 5 % level, for runs over seeds need not vary alike under two
settings. It is not corrected for how many settings are compared.

What runs on the same records cost together is their sum, of epsilons and of deltas (Dwork & Roth
2014, Theorem 3.16): a bound that always holds and is never tight. ``dpft account runs=…`` composes
the mechanisms themselves.
"""

import json
import math
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.errors import InputError
from dpft.evaluation.metrics.base import HIGHER, METRICS
from dpft.privacy.accounting.summary import delta_text, eps_text
from dpft.records.promises import PrivateRun, guarantee
from dpft.records.scores import ScoreEntry
from dpft.reports.pages import printed
from dpft.reports.run_record import RunRecord

EPS = "privacy.eps"
NOT_PRIVATE = "not private"
CLIPPING = ("privacy.max_grad_norm", "privacy.clipping", "privacy.groups")
"""Keys that tell settings without noise apart, where their gradients are clipped."""
SPEED_ONLY = frozenset(
    {
        *("train.device", "train.num_threads", "train.checkpoint_every"),
        *("train.micro_batch_size", "train.micro_batch_tokens", "train.pad_to_multiple_of"),
    }
    | {
        "train.fused_head",
        "train.keep",
        "privacy.engine",
        "privacy.clipper_memory_mb",
        "eval.batch_size",
    }
    | {"model.gradient_checkpointing", "privacy.self_check", "privacy.show_diagnostics"}
    | {"reference", "reference_maps"}
)


WORDS = "task.label_words"
"""A key whose value is a mapping that is one thing: what a model may answer."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Runs that differ in their seeds alone."""

    values: dict[str, Any]
    """Dotted key to value, of all that tells settings apart."""
    runs: tuple[RunRecord, ...]

    def label(self, key: str) -> str:
        """Returns the value of a key as it is printed."""
        return printed(self.values.get(key))

    @property
    def level(self) -> str:
        """The privacy level, within which settings compete."""
        return self.label(EPS)


def group_runs(records: Iterable[RunRecord], *, kept: Sequence[str] = ()) -> list[Setting]:
    """Returns the settings in the order in which they first occur.

    Args:
        records: Of finished runs.
        kept: Keys that tell settings apart though they are seeds, or change speed alone.
    """
    groups: dict[str, tuple[dict[str, Any], list[RunRecord]]] = {}
    for record in records:
        values = setting_values(record.values, kept=kept)
        key = json.dumps(values, sort_keys=True, default=str)
        groups.setdefault(key, (values, []))[1].append(record)
    return [Setting(values=values, runs=tuple(runs)) for values, runs in groups.values()]


def setting_values(config: Mapping[str, Any], *, kept: Sequence[str] = ()) -> dict[str, Any]:
    """Returns what tells a run's setting apart, by dotted keys; ``kept`` as ``group_runs``."""
    flat = {
        key: value
        for key, value in _flat(config, "")
        if key in kept
        or (key not in SPEED_ONLY and not key.endswith("seed") and not key.startswith("tracking."))
    }
    if flat.get("privacy.name") == "none":
        norm = flat.get("privacy.max_grad_norm")
        kept_keys = () if norm is None else CLIPPING
        flat = {
            key: value
            for key, value in flat.items()
            if key in kept_keys or not key.startswith("privacy.")
        }
        flat[EPS] = NOT_PRIVATE if norm is None else f"{NOT_PRIVATE}, clipped at {norm:g}"
    flat.pop("privacy.name", None)
    return flat


def ordered(labels: Iterable[str]) -> list[str]:
    """Returns distinct values as they are printed, numbers by size and before words."""
    distinct = list(dict.fromkeys(labels))
    numbers = {label: number(label) for label in distinct}
    known = [label for label in distinct if numbers[label] is not None]
    rest = [label for label in distinct if numbers[label] is None]
    return [*sorted(known, key=lambda label: numbers[label] or 0.0), *rest]


def number(label: str) -> float | None:
    """Returns the number that a printed value is; None where it is a word."""
    try:
        return float(label)
    except ValueError:
        return None


def _differs(key: str, settings: Sequence[Setting]) -> bool:
    """Returns whether settings differ in a key.

    Where the name of a section differs (method, model), its other keys count only if they differ
    under one name: every method has its own.
    """
    section, _, own = key.partition(".")
    name = f"{section}.name"
    if own == "name" or not any(name in setting.values for setting in settings):
        return len({setting.label(key) for setting in settings}) > 1
    names = {setting.label(name) for setting in settings}
    return any(
        len({setting.label(key) for setting in settings if setting.label(name) == one}) > 1
        for one in names
    )


def _flat(value: Any, key: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, Mapping) or not value or key == WORDS:
        yield key, value
        return
    for name, part in value.items():
        yield from _flat(part, f"{key}.{name}".lstrip("."))


LEVEL = 0.05
BOLD_NOTE = (
    "Bold: within one privacy level, the best mean and every one that Welch's t-test (two-sided,"
    " 5 %, not corrected for the number of comparisons) does not tell from it, if it tells any"
    " apart; it needs at least two runs of each setting."
)


def best(scores: Mapping[int, Sequence[float]], metric: str) -> set[int]:
    """Returns the settings whose scores are best; none where the test tells none apart."""
    better = better_value(metric)
    if better is None or len(scores) < 2 or min(map(len, scores.values())) < 2:
        return set()
    sign = 1 if better == HIGHER else -1
    leader = max(scores, key=lambda setting: sign * statistics.fmean(scores[setting]))
    alike = {
        setting
        for setting, values in scores.items()
        if setting == leader or p_value(scores[leader], values) >= LEVEL
    }
    return alike if len(alike) < len(scores) else set()


def better_value(metric: str) -> str | None:
    """Returns which of two scores is better, ``HIGHER`` for a metric that dpft does not know."""
    specs = METRICS.entries().values()
    return next((spec.better for spec in specs if spec.reported_as == metric), HIGHER)


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
    """Returns the largest epsilon of the runs, rounded up."""
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


STATED = "as its run's privacy.json states it; `dpft account run=…` computes it from the ledger."
APART = (
    "The ε here are not all by one accountant at one δ, so each names its own, and none compares to"
    " one of another δ. Each is"
)


def composed_costs(records: Sequence[RunRecord], unfinished: int) -> list[str]:
    """Returns what the runs on each data set cost together, a sentence each.

    That runs of one task from one source share their records is assumed, and said.
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

    @property
    def runs(self) -> list[RunRecord]:
        """All runs, one setting after another."""
        return [run for setting in self.settings for run in setting.runs]

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
    """
    settings = group_runs(records, kept=over)
    # Keys in which settings differ, epsilon's last.
    every = dict.fromkeys(key for setting in settings for key in setting.values)
    swept = [key for key in every if _differs(key, settings)]
    keys = sorted(swept, key=lambda key: (key == EPS, not key.endswith(".name")))
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
