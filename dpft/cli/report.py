"""``dpft report``: tables and plots of many runs, or what people's ratings say of each system."""

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from dpft.config.account import LATEX, ReportConfig
from dpft.config.keys import quoted
from dpft.evaluation.ratings import (
    INDEPENDENT,
    Key,
    Ratings,
    rating_record,
    ratings_table,
    read_key,
    read_ratings,
)
from dpft.files import PAGE, PRIVATE, REPORT, SHEET_KEY, private_folder
from dpft.records.scores import RatingsReport, split_note
from dpft.reports.comparison import Comparison, compare
from dpft.reports.comparison_page import FILES, latex, markdown, record, write_comparison
from dpft.reports.run_record import RunRecord, with_own_scores
from dpft.reports.terminal import Answer, show_answer
from dpft.runs.saved_run import read_finished_runs, rebuild_report

LISTS = ("runs", "ratings")
"""Keys whose value may be a list, and may be given several times."""
logger = logging.getLogger(__name__)


def expand(overrides: list[str]) -> list[str]:
    """Returns the overrides, words alone as ``runs`` and a repeated key as one list.

    ``dpft report outputs/a outputs/b`` is ``runs=[outputs/a,outputs/b]``. Of a repeated key Hydra
    keeps only the last value.
    """
    words = [
        word if "=" in word or word[:1] in "~+" else f"runs={quoted(word)}" for word in overrides
    ]
    for key in LISTS:
        words = _joined(words, key)
    return words


def run(config: ReportConfig) -> None:
    """Prints tables, or one JSON object; with ``to`` writes tables and plots into a folder.

    Scores of private splits go to the folder's ``private/``; of what is printed, a terminal's table
    alone has them, rounded to two digits.
    """
    if config.folders:
        report_runs(config)
        return
    at = config.sheets[0].with_name(SHEET_KEY) if config.key is None else Path(config.key)
    key = read_key(at)
    described = describe(key, read_ratings(config.sheets, key))
    show_answer(Answer(table=ratings_table(described), record=described), config.output)


def report_runs(config: ReportConfig) -> None:
    """Writes or prints the tables of many runs, or writes the report of each anew.

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


def describe(key: Key, ratings: Ratings) -> RatingsReport:
    """Returns what ``output=json`` prints."""
    of_system = {
        system: [(rating.item, rating.value) for rating in ratings.given if rating.system == system]
        for system in key.systems
    }
    return RatingsReport(
        task=key.task,
        split=key.split,
        split_is_public=key.split_is_public,
        note=None if key.split_is_public else split_note(key.split),
        ratings=len(ratings.given),
        raters=len({rating.rater for rating in ratings.given}),
        not_rated=ratings.not_rated,
        interval=INDEPENDENT,
        systems=tuple(rating_record(system, given) for system, given in of_system.items()),
    )


def _joined(words: list[str], key: str) -> list[str]:
    given = [word.partition("=")[2] for word in words if word.startswith(f"{key}=")]
    if len(given) < 2:
        return words
    values = ",".join(value.removeprefix("[").removesuffix("]") for value in given)
    return [*(word for word in words if not word.startswith(f"{key}=")), f"{key}=[{values}]"]
