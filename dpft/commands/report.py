"""``dpft report``: tables and plots of many runs."""

import json
import logging
from pathlib import Path
from typing import Any

from dpft.commands.guarantee import read_finished_runs, rebuild_report
from dpft.config.keys import quoted
from dpft.config.report import PLOT, ReportConfig
from dpft.errors import InputError
from dpft.reports import comparison
from dpft.reports.promises import PrivateRun, guarantee
from dpft.reports.run_record import RunRecord
from dpft.run_folder import PAGE, PRIVATE_METRICS, REPORT, SCHEMA_VERSION, write_text

PLOT_FILE = "report.png"
logger = logging.getLogger(__name__)


def expand(overrides: list[str]) -> list[str]:
    """Returns the overrides, words alone as ``runs`` and a repeated key as one list.

    ``dpft report outputs/a outputs/b`` is ``runs=[outputs/a,outputs/b]``. Of a repeated key Hydra
    keeps only the last value.
    """
    words = [
        word if "=" in word or word[:1] in "~+" else f"runs={quoted(word)}" for word in overrides
    ]
    given = [word.partition("=")[2] for word in words if word.startswith("runs=")]
    if len(given) < 2:
        return words
    folders = ",".join(value.removeprefix("[").removesuffix("]") for value in given)
    return [*(word for word in words if not word.startswith("runs=")), f"runs=[{folders}]"]


def run(config: ReportConfig) -> None:
    """Print or write a table or a plot of finished runs, or write the report of each run again.

    Raises:
        InputError: A folder holds no finished run, or has a symbolic link; a run has no ledger; or
            there is no such key or score.
        StateError: A run's files are damaged.
    """
    records, unfinished = read_finished_runs(config.folders)
    if config.rebuild:
        for record in records:
            rebuild_report(record)
            logger.info("%s: %s and %s written anew", record.folder, REPORT, PAGE)
        return
    runs = [(record, cost_of(record)) for record in records]
    frame, keys, metrics = comparison.frame_of(runs, over=config.keys)
    if config.metrics:
        metrics = comparison.choose_metrics(metrics, config.metrics)
    if config.output == "json":
        rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
        answer = {"schema_version": SCHEMA_VERSION, "runs": rows}
        answer |= {"left_out": [str(folder) for folder in unfinished]}
        print(json.dumps(answer, indent=2, ensure_ascii=False))
    elif config.to == PLOT:
        if not metrics:
            raise InputError(
                "to=plot needs runs with public scores, got none; scores of private splits are only"
                f" in each run's {PRIVATE_METRICS}."
            )
        path = Path(config.file or PLOT_FILE)
        comparison.plot(frame, keys, metrics if config.metrics else metrics[:1], path)
        logger.info("plot: %s", path)
    else:
        notes = comparison.notes_of(records, unfinished)
        text = comparison.render(config.to, frame, keys, metrics, notes)
        if config.file is None:
            print(text, end="")
        else:
            write_text(Path(config.file), text)
            logger.info("table: %s", config.file)


def cost_of(record: RunRecord) -> dict[str, Any]:
    """Return a run's epsilon and delta, whose bound it is, and whether it protects anybody.

    The guarantee is computed from the ledger; with the tokenizer if the same records made it.
    """
    privacy = record.privacy
    if not isinstance(privacy, PrivateRun):
        return {"epsilon": None, "delta": None, "accountant": None, "private": False}
    epsilon, delta = guarantee(privacy)
    accountant = privacy.accountant if privacy.with_tokenizer is None else "pld"
    return {
        "epsilon": epsilon,
        "delta": delta,
        "accountant": accountant,
        "private": privacy.private,
    }
