"""Comparison of finished runs: a pandas frame with one row per run, tables and a plot.

Runs of one setting differ only in seeds, or in keys that change speed but not the model. CSV and
JSON have one row per run, unrounded. Tables and plots have one row or point per setting: the mean
over its runs ± the sample standard deviation. Every other key separates settings, whether it was
swept or not, so no mean is taken over two settings.

The frame contains only scores that metrics.json shows: scores of public splits, and the rounded
scores of private splits that ``eval.publish_private_scores`` published. The names of such rounded
scores end in ``MARK``.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpft.errors import InputError
from dpft.evaluation.scores import ScoreEntry
from dpft.privacy.accounting.summary import delta_text, eps_text
from dpft.reports.published import PUBLISHED, SOURCE, published_scores
from dpft.reports.rendering import line, printed, render_page
from dpft.reports.run_record import RunRecord
from dpft.run_folder import PRIVATE_METRICS

if TYPE_CHECKING:
    import pandas as pd

SPEED_ONLY = frozenset(
    {
        *("train.device", "train.num_threads", "train.checkpoint_every"),
        *("train.micro_batch_size", "train.micro_batch_tokens", "train.pad_to_multiple_of"),
        *("train.keep", "privacy.engine", "privacy.show_diagnostics", "eval.batch_size"),
        *("model.gradient_checkpointing", "reference", "reference_maps"),
    }
)
"""Keys that do not change the model."""
MARK = " (private)"
"""Suffix of published scores of private splits."""
BEFORE = "before."
"""Prefix of scores before fine-tuning."""


def frame_of(
    runs: Sequence[tuple[RunRecord, Mapping[str, Any]]], *, over: Sequence[str] = ()
) -> "tuple[pd.DataFrame, list[str], list[str]]":
    """Return the frame, the keys in which its settings differ, and the names of its scores.

    A score has the name of its metric. If there are several splits, the name includes the split.

    Args:
        runs: The record of each run, and its ``epsilon``, ``delta``, ``accountant``, ``private``.
        over: Keys to put first. They may be equal in all runs, or seeds.

    Raises:
        InputError: No run has one of the keys in ``over``.
    """
    import pandas as pd

    records = [record for record, _ in runs]
    configs = pd.json_normalize([dict(record.values) for record in records], max_level=1)
    configs = configs.map(lambda value: printed(value) if isinstance(value, list | dict) else value)
    configs = configs.convert_dtypes()
    differing = _differing_keys(configs)
    for key in over:
        if key not in configs:
            raise InputError(
                f"over must name keys of the runs' configuration, got {key!r}. The runs differ in"
                f" {', '.join(differing) or 'no key'}.",
                key="over",
                value=key,
            )
    keys = list(dict.fromkeys([*over, *differing])) or ["task.name"]
    scored = [(one, entry) for one in records for entry in one.after() if entry.metrics]
    several = len({_split_name(record, entry) for record, entry in scored}) > 1
    scores = [
        {
            f"{stage}{name}": value
            for stage, entries in (("", record.after()), (BEFORE, record.before()))
            for entry in entries
            for name, value in _scores(record, entry, named=several)
        }
        for record in records
    ]
    costs = [
        {
            "run": str(record.folder),
            **cost,
            "trainable_parameters": record.privacy.parameters.trainable,
            "total_parameters": record.privacy.parameters.total,
        }
        for record, cost in runs
    ]
    published = [published_scores(record) for record in records]
    seed = [key for key in ("train.seed",) if key in configs and key not in keys]
    parts = [configs[[*keys, *seed]], *map(pd.DataFrame, (costs, scores, published))]
    frame = pd.concat(parts, axis="columns")
    frame.insert(0, "run", frame.pop("run"))
    return frame, keys, [name for name in parts[2] if not name.startswith(BEFORE)]


def _differing_keys(configs: "pd.DataFrame") -> list[str]:
    """Return the keys in which settings differ, ``SECTION.name`` keys first.

    Suppose that the ``name`` of a section differs between runs (method, model, privacy). Then
    another key of the section counts only if it differs between runs with the same name, because
    each method has keys of its own.
    """

    def differs(key: str) -> bool:
        name = f"{key.partition('.')[0]}.name"
        if key == name or name not in configs:
            return bool(configs[key].nunique(dropna=False) > 1)
        return bool((configs.groupby(name, dropna=False)[key].nunique(dropna=False) > 1).any())

    keys = [
        key
        for key in configs
        if key not in SPEED_ONLY and not key.endswith("seed") and not key.startswith("tracking.")
    ]
    return sorted(filter(differs, keys), key=lambda key: not key.endswith(".name"))


def _split_name(record: RunRecord, entry: ScoreEntry) -> str:
    of_own_task = entry.task == record.config.task.name
    return entry.split if of_own_task else f"{entry.task}.{entry.split}"


def _scores(record: RunRecord, entry: ScoreEntry, *, named: bool) -> Iterable[tuple[str, float]]:
    prefix = f"{_split_name(record, entry)}." if named else ""
    mark = "" if entry.split_is_public else MARK
    return ((f"{prefix}{metric}{mark}", value) for metric, value in entry.metrics.items())


def choose_metrics(metrics: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return the scores that were asked for.

    Raises:
        InputError: No run has a public score of that name.
    """
    names = [metric.removesuffix(MARK) for metric in metrics]
    for name in wanted:
        if name not in names:
            raise InputError(
                f"metric must be a public score of the runs ({', '.join(names) or 'none here'}),"
                f" got {name!r}. Private scores are only in {PRIVATE_METRICS} of each run.",
                key="metric",
                value=name,
            )
    return [metric for metric in metrics if metric.removesuffix(MARK) in wanted]


def table(frame: "pd.DataFrame", keys: list[str], metrics: Sequence[str]) -> "pd.DataFrame":
    """Return one row of texts per setting."""
    published = [f"{PUBLISHED}{name.removesuffix(MARK)}" for name in metrics]
    published = [name for name in published if name in frame]

    def row(runs: "pd.DataFrame") -> "pd.Series[Any]":
        import pandas as pd

        values = {
            "epsilon": _epsilon(runs),
            "delta": "–" if runs["delta"].isna().any() else delta_text(float(runs["delta"].max())),
            "accountant": _texts(runs["accountant"]),
            "runs": str(len(runs)),
            "trainable_parameters": f"{runs['trainable_parameters'].iloc[0]:,}",
            **{name: _spread(runs[name]) for name in metrics},
            **{name: _texts(runs[name]) for name in (*published, *([SOURCE] if published else ()))},
        }
        return pd.Series(values)

    groups = frame.groupby(keys, dropna=False, sort=False)
    rows = groups.apply(row, include_groups=False).reset_index()
    return rows.assign(**{key: rows[key].map(_text) for key in keys})


def _epsilon(runs: "pd.DataFrame") -> str:
    """Return the largest ε, rounded up."""
    if runs["epsilon"].isna().any():
        return "not private"
    seeded = "" if runs["private"].all() else " (not private: noise_seed)"
    return f"{eps_text(float(runs['epsilon'].max()))}{seeded}"


def _spread(values: "pd.Series[Any]") -> str:
    if values.count() == 0:
        return "–"
    deviation = f" ± {values.std():.3f}" if values.count() > 1 else ""
    return f"{values.mean():.3f}{deviation}"


def _texts(values: "pd.Series[Any]") -> str:
    return ", ".join(map(_text, values.dropna().unique())) or "–"


def _text(value: Any) -> str:
    import pandas as pd

    return printed(None if pd.isna(value) else value)


def notes_of(records: Sequence[RunRecord], unfinished: Sequence[Path]) -> list[str]:
    """Return the notes for the reader of a table, one sentence each."""
    notes = [
        "Scores are after fine-tuning: the mean, ± the standard deviation over runs that differ"
        " only in their seeds. Epsilon is the largest of these runs, computed from the ledgers."
    ]
    if len(records) > 1:
        notes.append(
            "Each epsilon is the cost of one run. `dpft account runs=…` computes what several runs"
            " on the same records cost together."
        )
    private = [entry for record in records for entry in record.after() if entry.is_private]
    if any(entry.metrics for entry in private):
        notes.append(
            f"Scores marked{MARK} are of private records and rounded to two digits; epsilon does"
            " not cover them."
        )
    hidden = {f"{entry.task}, split {entry.split}" for entry in private if not entry.metrics}
    if hidden:
        notes.append(
            f"Scores on private records ({'; '.join(sorted(hidden))}) are only in each run's"
            f" `{PRIVATE_METRICS}`."
        )
    if unfinished:
        notes.append(f"Skipped, because they have not ended: {', '.join(map(str, unfinished))}.")
    return notes


def render(
    to: str, frame: "pd.DataFrame", keys: list[str], metrics: Sequence[str], notes: Sequence[str]
) -> str:
    """Return the frame as CSV, or a table of its settings as Markdown, LaTeX or an HTML page.

    LaTeX needs the package booktabs; the notes are comments in it.
    """
    if to == "csv":
        return str(frame.to_csv(index=False, lineterminator="\n"))
    rows = table(frame, keys, metrics)
    counted = ((len(frame), "run"), (len(rows), "setting"))
    title = ", ".join(f"{number} {noun}{'s' * (number != 1)}" for number, noun in counted)
    if to == "latex":
        comments = "".join(f"% {' '.join(note.split())}\n" for note in (title, *notes))
        cells = rows.to_latex(index=False, escape=True)
        return comments + str(cells).replace("±", r"$\pm$").replace("–", "--")
    cells = rows.map(line).rename(columns=line).to_markdown(index=False, disable_numparse=True)
    markdown = "\n\n".join([f"# {title}", str(cells), *map(line, notes)]) + "\n"
    if to == "html":
        return render_page(title, markdown.replace(" ± ", "\u00a0±\u00a0"))  # one line each
    return markdown


def plot(frame: "pd.DataFrame", keys: list[str], metrics: Sequence[str], path: Path) -> None:
    """Draw each metric over the first numeric key, or as bars if no key is numeric.

    Each combination of values of the other keys is one series.

    The suffix of the path chooses the format.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    axis = next((key for key in keys if _is_numeric(frame[key])), keys[0])
    is_numeric, others = _is_numeric(frame[axis]), [key for key in keys if key != axis]
    shape: dict[str, Any] = {"kind": "bar", "rot": 20}
    if is_numeric:
        shape = {"marker": "o", "logx": bool(frame[axis].min() > 0)}
    frame = frame.assign(
        place=frame[axis] if is_numeric else frame[axis].map(_text),
        series=frame[others].map(_text).agg(", ".join, axis="columns") if others else "",
    )
    figure = Figure(figsize=(6.4 * len(metrics), 4.4), layout="constrained")
    panels = figure.subplots(1, len(metrics), squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=True):
        groups = frame.groupby(["place", "series"], sort=is_numeric)[metric].agg(["mean", "std"])
        points = groups.unstack("series")
        deviations = points["std"].fillna(0)
        points["mean"].plot(ax=axes, yerr=deviations, capsize=3, legend=False, **shape)
        axes.set(xlabel=axis, ylabel=metric)
        if is_numeric:
            axes.set_xticks(points.index, map(_text, points.index))
            axes.minorticks_off()
        if others:
            axes.legend(title=", ".join(others))
    with rc_context({"text.parse_math": False}):  # a name may contain dollar signs
        figure.savefig(path, dpi=150)


def _is_numeric(values: "pd.Series[Any]") -> bool:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return bool(is_numeric_dtype(values) and not is_bool_dtype(values) and values.notna().all())
