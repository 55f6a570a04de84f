"""``dpft report``: tables and plots of many runs."""

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from dpft.config.account import LATEX, ReportConfig
from dpft.config.keys import quoted
from dpft.files import PAGE, PRIVATE, REPORT, private_folder
from dpft.reports.comparison import Comparison, compare
from dpft.reports.comparison_page import FILES, latex, markdown, record, write_comparison
from dpft.reports.run_record import RunRecord, with_own_scores
from dpft.runs.saved_run import read_finished_runs, rebuild_report

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
    """Writes or prints the tables of many runs, or writes the report of each anew.

    Scores of private splits go to the folder's ``private/``; of what is printed, a terminal's table
    alone has them, rounded to two digits.

    Raises:
        InputError: A folder holds none, or none of them has a report, or one has a symbolic link.
        StateError: A run's files are damaged.
    """
    records, unfinished = read_finished_runs(config.folders)
    if config.rebuild:
        for run_record in records:
            rebuild_report(run_record)
            logger.info("%s: %s and %s written anew", run_record.folder, REPORT, PAGE)
        return
    own = [with_own_scores(each) for each in records]
    whole = compared(config, own, unfinished, metrics=config.metrics)  # knows every metric
    known = {name for each in records for one in each.after() for name in one.metrics}
    shown = None if config.metrics is None else tuple(filter(known.__contains__, config.metrics))
    comparison = compared(config, records, unfinished, metrics=shown)
    folder = config.folder
    if folder is not None:
        if config.signal_to_noise:
            from dpft.reports.comparison_page import OWNERS, write_signal_to_noise
            from dpft.training.session import read_signal_to_noise

            ratios = {run.folder: read_signal_to_noise(run.folder) for run in whole.runs}
            logger.info("%s: %s", write_signal_to_noise(whole, ratios, folder), OWNERS)
        write_comparison(comparison, folder)
        logger.info("%s: %s", folder, ", ".join(FILES))
        if own != records:
            write_comparison(whole, private_folder(folder), mode=0o600)
            logger.info("scores of private splits: %s", folder / PRIVATE)
    if config.output == "json":
        print(json.dumps(record(comparison), indent=2, sort_keys=True, ensure_ascii=False))
    elif folder is None:
        if sys.stdout.isatty():
            rounded = [with_own_scores(each, rounded=True) for each in records]
            comparison = compared(config, rounded, unfinished, metrics=config.metrics)
        print(latex(comparison) if config.to == LATEX else markdown(comparison), end="")


def compared(
    config: ReportConfig,
    records: Sequence[RunRecord],
    unfinished: Sequence[Path],
    *,
    metrics: tuple[str, ...] | None,
) -> Comparison:
    """Returns the comparison that was asked for of some runs."""
    return compare(records, unfinished=unfinished, over=config.keys, metrics=metrics)
