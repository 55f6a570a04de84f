"""What a run says at its end: the promise, the scores that may be shown, and what can be done next.

Every line follows from the public files of the run's folder, so that a run that is asked again
says the same. Of a private split there is no number: whoever reads a log is anybody
(docs/design.md, rule 8).
"""

import logging
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpft.config.keys import quoted
from dpft.data.memory import MEMORY
from dpft.kinds import TEXTS
from dpft.reports.accounting.epsilon import headline_of
from dpft.reports.run.metrics_files import (
    PRIVATE_SPLIT,
    is_private,
    read_own_evaluations,
    shown,
)
from dpft.reports.run.origin import data_name, model_name
from dpft.reports.run.run_record import RunRecord, read_record
from dpft.reports.run.scores import ScoreTable, score_tables
from dpft.reports.run.sections import headline, with_tokenizer
from dpft.reports.run.started_from import started_from
from dpft.run_folder import DATA_SUMMARY, PAGE, PRIVATE_METRICS, REPORT
from dpft.tasks.base import Task

PLAIN = re.compile(r"[\w./ -]+")
"""Values that Hydra reads as they are."""
logger = logging.getLogger(__name__)


def say_ending(folder: Path, task: Task) -> None:
    """Logs what a run has come to.

    Args:
        folder: Of a run that has ended, or of a search.
        task: The run's.
    """
    for line in ending_lines(folder, task):
        logger.info("%s", line)


def show_to_owner(folder: Path) -> None:
    """Prints a run's scores on private splits, rounded and marked, where a terminal shows them.

    A pipe, a file or the log of a job is read by others: there the run has named the folder alone.

    Args:
        folder: Of a run that has ended.
    """
    if not sys.stdout.isatty():
        return
    own = [entry for entry in read_own_evaluations(folder) if is_private(entry)]
    for table in score_tables([shown(entry, rounded=True) for entry in own]):
        if table.rows:
            print(f"private scores: {_scores(table, folder)}")


def ending_lines(folder: Path, task: Task) -> list[str]:
    """Returns what a run has come to, a line each, with the folder as it is seen from here.

    Args:
        folder: Of a run that has ended, or of a search.
        task: The run's.

    Raises:
        InputError: A public file of the run is missing.
        StateError: One is damaged.
    """
    record, short = read_record(folder), _short(folder)
    tables = score_tables(record.evaluations)
    return [
        f"trained: {_trained(record)}",
        f"privacy: {_promise(record.privacy)}",
        *(f"scores: {_scores(table, short)}" for table in tables),
        *_summary(folder, short),
        f"report: {short / REPORT}, {short / PAGE}",
        *(f"next: {shlex.join(['dpft', *words])}" for words in _next(short, task, tables)),
    ]


def _short(folder: Path) -> Path:
    here = Path.cwd()
    whole = Path(os.path.abspath(folder))
    return whole.relative_to(here) if whole.is_relative_to(here) else folder


def _trained(record: RunRecord) -> str:
    config, privacy = record.config, record.privacy
    counted = "examples" if privacy.get("unit", "example") == "example" else "units"
    told = [privacy["num_examples_source"]] if "num_examples_source" in privacy else []
    if "epsilon" in privacy:
        told.append("epsilon does not hide this number")
    public = f" ({'; '.join(told)})" if told else ""
    return (
        f"{model_name(config)} by method {config['method']['name']} on {data_name(config)},"
        f" {privacy['num_examples']} {counted}{public}"
    )


def _promise(privacy: Mapping[str, Any]) -> str:
    """Returns epsilon with all that it means nothing without, or that there is none."""
    if "epsilon" not in privacy or not privacy["private"]:
        return headline(privacy).replace("*", "").replace("`", "")
    lines = headline_of(
        privacy["epsilon"],
        delta=privacy["delta"],
        accountant=privacy["accountant"],
        steps=f"{privacy['steps_taken']} steps taken of {privacy['steps']} planned",
        unit=privacy["unit"],
    )
    both = (with_tokenizer(privacy) + started_from(privacy)).replace("*", "").strip()
    return " ".join(lines.split()) + (f". {both}" if both else "")


def _summary(folder: Path, short: Path) -> list[str]:
    """Returns where it stands which records were left out; none for a search, or an old run."""
    if not (folder / DATA_SUMMARY).exists():
        return []
    return [f"records: what was left out, cut and held out is in {short / DATA_SUMMARY} (private)"]


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


def _next(folder: Path, task: Task, tables: Sequence[ScoreTable]) -> list[list[str]]:
    """Returns the commands that go on from here, a list of words each."""
    run = f"run={_value(folder)}"
    scored = any(table.rows or table.hidden for table in tables)
    # A single file was trained on as a whole: other records have to be named.
    others = [] if scored or not tables else ["task.data_dir=DIR"]
    if task.effective_source == MEMORY and not others:
        others = ["task.data_dir=DIR", "eval.held_out=null"]  # The rows are not on disk.
    return [["eval", run, *others], _use(run, task), ["report", f"runs={_value(folder)}"]]


def _use(run: str, task: Task) -> list[str]:
    """Returns the command that makes something of the model: texts, or a folder to hand on."""
    if task.answers != TEXTS:
        return ["export", run]
    from_nothing = getattr(task, "from_nothing", None)
    return ["generate", run, "prompts=FILE" if from_nothing is None else "num=100"]


def _value(folder: Path) -> str:
    return str(folder) if PLAIN.fullmatch(str(folder)) else quoted(str(folder))
