"""End of a training run: write privacy.json and the report, and print the last lines.

The lines state the guarantee, the scores that may be shown, and the commands to run next.
"""

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.text import Text

from dpft.commands.guarantee import private_guarantee, read_finished_run
from dpft.commands.ledger_account import read_spent
from dpft.commands.new_run import origin, read_begun
from dpft.commands.run_plan import RunPlan, steps_plan
from dpft.commands.scoring import write_scores
from dpft.config.keys import in_shell
from dpft.config.schema import TrainConfig
from dpft.constants import NOTHING, PROMPTS
from dpft.data.raw_rows import MEMORY, file_rows
from dpft.evaluation.evaluate import Evaluation
from dpft.evaluation.metrics.base import HIGHER, LOWER, better_value
from dpft.evaluation.scores import PRIVATE_SPLIT
from dpft.methods.base import ParameterCounts
from dpft.privacy.accounting.curve import EpsilonCurve
from dpft.privacy.accounting.interpretation import best_attack_accuracy
from dpft.privacy.accounting.summary import delta_text, eps_text
from dpft.privacy.journal import NO_STEPS, StepEntry, read_journal
from dpft.privacy.ledger import LedgerRecord, check_ledger
from dpft.privacy.plan import EXAMPLE
from dpft.reports.epsilon import headline_of
from dpft.reports.privacy_json import OpenRun, PrivateRun, RunPrivacy, guarantee, is_promised
from dpft.reports.privacy_record import (
    no_promise,
    processes_of,
)
from dpft.reports.privacy_sentences import (
    started_from,
)
from dpft.reports.rendering import digits
from dpft.reports.report import write_report
from dpft.reports.run_record import RunRecord, data_name, model_title
from dpft.reports.scores import ScoreTable, data_title, metric_heading, score_tables
from dpft.reports.sections import headline, what_epsilon_is_of
from dpft.reports.terminal import Grid, show
from dpft.run_folder import (
    DATA_SUMMARY,
    JOURNAL,
    MODEL,
    PAGE,
    PREDICTIONS,
    PRIVACY,
    PRIVATE,
    PRIVATE_METRICS,
    REPORT,
)
from dpft.strict_model import merge_models, parse, write_model
from dpft.tasks.base import Task

BETTER, DIM, WARNING = "green", "dim", "yellow"


def show_ending(folder: Path, task: Task) -> None:
    """Print the results of a run: tables on a terminal, ``key: value`` lines in a pipe."""
    show(_summary(folder, task) if sys.stdout.isatty() else ending_lines(folder, task))


def _summary(folder: Path, task: Task) -> list[Grid | Text]:
    """Return the results of a run for a terminal: scores and privacy first, then files."""
    short, record = _relative(folder), read_finished_run(folder)
    tables = score_tables(record.evaluations)
    seconds = sum(line.seconds or 0 for line in record.progress)
    took = f" in {_duration(seconds)} of training" if seconds else ""
    model, data = model_title(record.config, record.privacy), data_name(record.config.task)
    files = [
        ("Report", Text(str(short / PAGE), DIM)),
        ("Model", Text(str(short / MODEL), DIM)),
        ("Private", Text.assemble((str(short / PRIVATE), DIM), "  (never publish)")),
    ]
    commands = [f"dpft {arguments}" for arguments in _next(short, task, tables)]
    notes = [*record.privacy.warnings, *_if_nothing_was_learned(record)]
    return [
        Text.assemble(("✓ ", BETTER), (f"Trained {model} on {data}{took}", "bold")),
        Grid(rows=_in_first_row("Privacy", _guarantee(record.privacy))),
        *(_score_grid(table, record) for table in tables if table.rows),
        *(Text(_scores(table, short)) for table in tables if not table.rows),
        Grid(rows=[*files, *_in_first_row("Next", [Text(command) for command in commands])]),
        *(Text(f"Warning: {note}", WARNING) for note in notes),
    ]


def _guarantee(privacy: RunPrivacy) -> list[Text]:
    """Return epsilon with its meaning, or the statement that there is no guarantee."""
    if not is_promised(privacy):
        return [Text(headline(privacy).replace("*", "").replace("`", ""), WARNING)]
    unit = "record" if privacy.plan.unit == EXAMPLE else privacy.plan.unit
    epsilon, delta = eps_text(privacy.epsilon), delta_text(privacy.delta)
    steps = f"{privacy.steps_taken}/{privacy.plan.steps} steps"
    lines = [f"ε ≤ {epsilon}, δ = {delta} per {unit} ({privacy.accountant.upper()}, {steps})"]
    accuracy = best_attack_accuracy(*guarantee(privacy))
    if accuracy is not None:
        lines.append(f"membership guess correct at most {accuracy}% of the time")
    more = (what_epsilon_is_of(privacy) + started_from(privacy)).replace("*", "").strip()
    return [Text(line) for line in [*lines, *filter(None, [more])]]


def _in_first_row(name: str, values: Sequence[Text]) -> list[tuple[str, Text]]:
    return [("" if number else name, value) for number, value in enumerate(values)]


def _duration(seconds: float) -> str:
    """Return a duration as text.

    >>> _duration(80), _duration(42), _duration(3720)
    ('1 min 20 s', '42 s', '1 h 2 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _score_grid(table: ScoreTable, record: RunRecord) -> Grid:
    counted = f" ({max(table.examples)})" if table.public else f" ({PRIVATE_SPLIT})"
    rows: list[tuple[str | Text, ...]] = []
    for name, values in table.rows:
        cells = ["–" if value is None else digits(value, table.digits) for value in values]
        heading = metric_heading(record.config, name)
        improved = len(values) > 1 and _is_better(name, values[-1], values[0])
        rows.append((heading, *cells[:-1], Text(cells[-1], BETTER if improved else "")))
    columns = ["", *(stage.replace("_", " ") for stage in table.stages)]
    title = f"{data_title(table.task)} {table.split}{counted}"
    return Grid(title=title, columns=columns, rows=rows)


def _is_better(name: str, value: float | None, before: float | None) -> bool:
    """Return whether a score is better than the score before training."""
    if value is None or before is None:
        return False
    better = better_value(name)
    return (better == HIGHER and value > before) or (better == LOWER and value < before)


def _relative(folder: Path) -> Path:
    """Return a folder relative to the working directory if the folder is inside it."""
    here, whole = Path.cwd(), Path(os.path.abspath(folder))
    return whole.relative_to(here) if whole.is_relative_to(here) else folder


def ending_lines(folder: Path, task: Task) -> list[str]:
    """Return the results of a run, one line each, with paths relative to the working directory.

    Args:
        folder: The folder of the run.
        task: The task of the run.
    """
    short, record = _relative(folder), read_finished_run(folder)
    tables, skipped = score_tables(record.evaluations), list[str]()
    if (folder / DATA_SUMMARY).exists():  # a search writes no summary
        skipped = [f"data: {short / DATA_SUMMARY} (private: skipped, cut and held-out records)"]
    return [
        f"trained: {_trained(record)}",
        f"privacy: {_promise(record.privacy)}",
        *(f"scores: {_scores(table, short)}" for table in tables),
        *skipped,
        f"report: {short / REPORT}, {short / PAGE}",
        *(f"warning: {note}" for note in _if_nothing_was_learned(record)),
        *(f"next: dpft {words}" for words in _next(short, task, tables)),
    ]


def _if_nothing_was_learned(record: RunRecord) -> list[str]:
    """Return a warning if no public score of a split is above its baseline.

    One baseline is the model before training. If a run has a single split with an accuracy, the
    second baseline for it is to always answer the most frequent class.
    """
    stages: dict[tuple[str, str], dict[str, Mapping[str, float]]] = {}
    for entry in record.evaluations:
        if entry.split_is_public:
            stages.setdefault((entry.task, entry.split), {})[entry.stage] = entry.metrics
    for (task, split), scores in stages.items():
        before, after = scores.get("before", {}), scores.get("after", {})
        common = [name for name in after if name in before and better_value(name) is not None]
        is_single = len(stages) == 1 and "accuracy" in after
        majority = _majority(record.folder / PREDICTIONS) if is_single else None
        if majority is not None and after["accuracy"] <= majority:
            baseline = "always answering the most frequent class"
        elif common and not any(_is_better(name, after[name], before[name]) for name in common):
            baseline = "the model before training"
        else:
            continue
        return [
            f"no score on {task}, split {split}, is better than that of {baseline}. Try a higher"
            " train.learning_rate, more train.steps, or a larger privacy.eps."
        ]
    return []


def _majority(predictions: Path) -> float | None:
    """Return the share of the most frequent reference, or None if the share is unknown.

    The share is unknown if the file is missing or empty, or if a row does not have exactly one
    reference.
    """
    if not predictions.is_file():
        return None
    answers: Counter[str] = Counter()
    for row in file_rows(predictions):
        references = row.values.get("references")
        if not isinstance(references, list) or len(references) != 1:
            return None
        answers[str(references[0])] += 1
    return max(answers.values()) / answers.total() if answers else None


def _trained(record: RunRecord) -> str:
    config, privacy = record.config, record.privacy
    counted, told = "examples", []
    if isinstance(privacy, PrivateRun):
        counted = "examples" if privacy.plan.unit == EXAMPLE else "units"
        told = [privacy.num_examples_source, "epsilon does not hide this number"]
    public = f" ({'; '.join(told)})" if told else ""
    return (
        f"{model_title(config, privacy)} by method {config.method.name} on"
        f" {data_name(config.task)}, {privacy.plan.num_examples} {counted}{public}"
    )


def _promise(privacy: RunPrivacy) -> str:
    """Return epsilon and its context, or the statement that there is no guarantee."""
    if isinstance(privacy, OpenRun) or not privacy.private:
        return headline(privacy).replace("*", "").replace("`", "")
    lines = headline_of(
        privacy.epsilon,
        delta=privacy.delta,
        accountant=privacy.accountant,
        steps=f"{privacy.steps_taken} steps taken of {privacy.plan.steps} planned",
        unit=privacy.plan.unit,
        sampler=privacy.plan.sampler,
    )
    both = (what_epsilon_is_of(privacy) + started_from(privacy)).replace("*", "").strip()
    return " ".join(lines.split()) + (f". {both}" if both else "")


def _scores(table: ScoreTable, folder: Path) -> str:
    what = f"{table.task}, split {table.split}"
    if table.hidden and not table.rows:
        return f"{what}: private, in {folder / PRIVATE_METRICS}"
    if not table.rows:
        why = "; ".join(table.not_computed) or "no metric has a value"
        return f"{what}: none ({why})"
    counted = f", {max(table.examples)} distinct inputs" if table.public else ""
    scored = f"{what}{counted}, {' -> '.join(table.stages)} training"
    marked = "" if table.public else f" ({PRIVATE_SPLIT}; rounded to two digits)"
    return f"{scored}: {', '.join(_score(name, values) for name, values in table.rows)}{marked}"


def _score(name: str, values: Sequence[float | None]) -> str:
    written = ["none" if value is None else f"{value:.4g}" for value in values]
    return f"{name} {' -> '.join(written)}"


def _next(folder: Path, task: Task, tables: Sequence[ScoreTable]) -> list[str]:
    """Return the commands to run next, quoted for a shell."""
    run = in_shell("run", folder)
    scored = any(table.rows or table.hidden for table in tables)
    # A single file was used entirely for training, so the user must name other records.
    others = [] if scored or not tables else ["task.data_dir=DIR"]
    if task.effective_source == MEMORY and not others:
        others = ["task.data_dir=DIR", "eval.held_out=null"]  # The rows are not on disk.
    given = {NOTHING: f"{NOTHING}=100", PROMPTS: f"{PROMPTS}=FILE"}
    wrote = task.written_from
    use = f"export {run}" if wrote is None else f"generate {run} {given[wrote]}"
    return [" ".join(["eval", run, *others]), use, f"report {in_shell('runs', folder)}"]


def report(
    config: TrainConfig,
    plan: RunPlan,
    folder: Path,
    counts: ParameterCounts,
    evaluations: Sequence[Evaluation],
    ledger: LedgerRecord | None,
    curve: EpsilonCurve | None = None,
) -> RunRecord:
    """Write predictions, metrics, the privacy record and the report.

    All steps of the plan must have been taken. ``ledger`` is the ledger of a private run, and
    ``curve`` is its epsilon over the steps.

    Returns:
        The contents of the run's public files.
    """
    write_scores(config, folder, evaluations)
    begun = origin(config, read_begun(folder))
    entries = (parse(entry, StepEntry) for entry in read_journal(folder / JOURNAL).values())
    sessions = [entry.processes for entry in entries if entry.processes is not None]
    begun = begun.replace(processes=processes_of(sessions))
    privacy: RunPrivacy
    if plan.privacy is None or config.privacy.guarantee is None:
        nothing = no_promise(steps_plan(config, plan))
        privacy = merge_models(OpenRun, nothing, begun, parameters=counts)
    else:
        check_ledger(ledger or NO_STEPS, plan.privacy)
        given = config.model.tokenizer
        privacy = private_guarantee(
            read_spent(str(folder), trial=True),
            counts,
            origin=begun,
            size_source=plan.size.source,
            tokenizer_is_public=given is not None and plan.privacy.tokenizer is None,
            curve=curve,
        )
    write_model(folder / PRIVACY, privacy)
    return write_report(folder, privacy)
