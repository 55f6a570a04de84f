"""The end of a training run: write privacy.json and the report, print the last lines.

The lines state the promise, the scores that may be shown, and what can be done next.
"""

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

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
from dpft.evaluation.scores import PRIVATE_SPLIT, ScoreEntry
from dpft.methods.base import ParameterCounts
from dpft.privacy.accounting.curve import EpsilonCurve
from dpft.privacy.journal import NO_STEPS, StepEntry, read_journal
from dpft.privacy.ledger import LedgerRecord, check_ledger
from dpft.privacy.plan import EXAMPLE
from dpft.reports.epsilon import headline_of
from dpft.reports.privacy_json import OpenRun, PrivateRun, RunPrivacy
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
from dpft.reports.scores import ScoreTable, score_tables, specs_of
from dpft.reports.sections import headline, what_epsilon_is_of
from dpft.reports.terminal import Grid, show
from dpft.run_folder import (
    DATA_SUMMARY,
    JOURNAL,
    PAGE,
    PREDICTIONS,
    PRIVACY,
    PRIVATE_METRICS,
    REPORT,
)
from dpft.strict_model import merge_models, parse, write_model
from dpft.tasks.base import Task

BAD_SCORES = "docs/how-to/bad-scores.md"


def show_ending(folder: Path, task: Task) -> None:
    """Prints what a run has come to: tables on a terminal, a line for each fact elsewhere."""
    if not sys.stdout.isatty():
        show(ending_lines(folder, task))
        return
    record, kind_before, rows = read_finished_run(folder), "", []
    for kind, _, text in (
        line.partition(": ") for line in ending_lines(folder, task, in_tables=True)
    ):
        rows.append(("" if kind == kind_before else kind, text))
        kind_before = kind
    tables = [table for table in score_tables(record.evaluations) if table.rows]
    show([Grid(title="Done", rows=rows), *(_score_grid(table, record) for table in tables)])


def _score_grid(table: ScoreTable, record: RunRecord) -> Grid:
    arrows = {HIGHER: " ↑", LOWER: " ↓"}
    specs = specs_of(record.config, [name for name, _ in table.rows])
    counted = f", {max(table.examples)} distinct inputs" if table.public else f", {PRIVATE_SPLIT}"
    return Grid(
        title=f"Scores on {table.task}, split {table.split}{counted}",
        columns=[
            "metric",
            *(heading.replace("fine-tuning", "training") for heading in table.headings),
        ],
        rows=[
            (
                f"{name}{arrows.get(specs[name].better or '', '') if name in specs else ''}",
                *("–" if value is None else digits(value, table.digits) for value in values),
            )
            for name, values in table.rows
        ],
    )


def ending_lines(folder: Path, task: Task, *, in_tables: bool = False) -> list[str]:
    """Return the results of a run, one line each, with paths relative to the working directory.

    Args:
        folder: The run's folder.
        task: The run's task.
        in_tables: Whether tables follow, so that the lines leave out the scores in them.
    """
    here = Path.cwd()
    whole = Path(os.path.abspath(folder))
    short = whole.relative_to(here) if whole.is_relative_to(here) else folder
    record = read_finished_run(folder)
    tables, left_out = score_tables(record.evaluations), []
    if (folder / DATA_SUMMARY).exists():  # a search has none
        told = f"what was left out, cut and held out is in {short / DATA_SUMMARY} (private)"
        left_out = [f"records: {told}"]
    return [
        f"trained: {_trained(record)}",
        f"privacy: {_promise(record.privacy)}",
        *(f"scores: {_scores(table, short)}" for table in tables if not (in_tables and table.rows)),
        *left_out,
        f"report: {short / REPORT}, {short / PAGE}",
        *_if_nothing_was_learned(
            [entry for entry in record.evaluations if entry.split_is_public], folder / PREDICTIONS
        ),
        *(f"next: dpft {words}" for words in _next(short, task, tables)),
    ]


def _if_nothing_was_learned(evaluations: Sequence[ScoreEntry], predictions: Path) -> list[str]:
    """Returns the line that names the page on bad scores, where a model seems to need it."""
    stages: dict[tuple[str, str], dict[str, Mapping[str, float]]] = {}
    for entry in evaluations:
        place = stages.setdefault((entry.task, entry.split), {})
        place[entry.stage] = entry.metrics
    for (task, split), scores in stages.items():
        before, after = scores.get("before", {}), scores.get("after", {})
        common = next((name for name in after if name in before), None)
        majority = _majority(predictions) if len(stages) == 1 and "accuracy" in after else None
        if majority is not None and after["accuracy"] <= majority:
            what = "of always answering the most frequent class"
        elif common is not None and not (
            after[common] < before[common]
            if better_value(common) == LOWER
            else after[common] > before[common]
        ):
            what = "before training"
        else:
            continue
        return [
            f"next: the model has learned little: its scores on {task}, split {split}, are no"
            f" better than those {what}; {BAD_SCORES} has the usual causes"
        ]
    return []


def _majority(predictions: Path) -> float | None:
    """Returns the share of the most frequent right answer in a file; None: it does not say."""
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
    """Returns epsilon with all that it means nothing without, or that there is none."""
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
    """Returns the commands that go on from here, as a shell reads them."""
    run = in_shell("run", folder)
    scored = any(table.rows or table.hidden for table in tables)
    # A single file was trained on as a whole: other records have to be named.
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
    """Writes predictions, metrics, the privacy record and the report.

    All steps of the plan were taken; ``ledger`` is that of a private run, and
    ``curve`` its epsilon over the steps.

    Returns:
        What the run's public files say now.
    """
    write_scores(config, folder, evaluations)
    begun = origin(config, read_begun(folder))
    entries = (parse(entry, StepEntry) for entry in read_journal(folder / JOURNAL).values())
    sessions = [entry.processes for entry in entries if entry.processes is not None]
    begun = begun.replace(processes=processes_of(sessions))
    guarantee = config.privacy.guarantee
    privacy: RunPrivacy
    if plan.privacy is None or guarantee is None:
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
