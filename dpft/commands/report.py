"""Comparison of many runs in a table or a plot (``dpft report``)."""

import json
import logging
from pathlib import Path
from typing import Any, Literal

from dpft.commands.guarantee import read_finished_runs, rebuild_report
from dpft.config.keys import quoted
from dpft.config.output_keys import Names, Output, check_folder, check_plot, listed_names
from dpft.config.section import Section
from dpft.errors import InputError
from dpft.reports import comparison
from dpft.reports.privacy_json import PrivateRun, guarantee
from dpft.reports.run_record import RunRecord
from dpft.run_folder import PAGE, PRIVATE_METRICS, REPORT, SCHEMA_VERSION, write_text

PLOT_FILE = "report.png"
MARKDOWN, PLOT = "markdown", "plot"
logger = logging.getLogger(__name__)


class ReportConfig(Section):
    """The configuration of ``dpft report``, conf/report.yaml."""

    runs: Names = None
    """Folders of runs or of sweeps: one or a list of them."""
    over: Names = None
    """Keys of the runs' configuration to show first, such as train.seed; null shows the keys that
    differ, except for seeds."""
    metric: Names = None
    """Scores in tables and plots: one or a list; null shows all scores in tables and the first one
    in a plot."""
    to: Literal["csv", "markdown", "latex", "html", "plot"] = "markdown"
    """Format: csv (one row per run), or markdown, latex, html or plot (one row or point per
    setting)."""
    file: str | None = None
    """File to write; null writes to stdout, or to report.png with to=plot."""
    rebuild: bool = False
    """Whether to write each run's own report.md, report.html and model card again instead of a
    table."""
    output: Output = "table"
    """table for people, or json for one object on stdout."""

    def _check_fields(self) -> None:
        if not self.folders:
            raise InputError(
                "runs must name at least one folder, got none.",
                key="runs",
                value=self.runs,
                hint="runs=outputs/DATE/TIME",
            )
        if self.file is not None:
            check_folder(self.file, key="file")
            if self.to == PLOT:
                check_plot(self.file, key="file")
        for name, is_set in (
            ("output=json", self.output == "json"),
            ("rebuild=true", self.rebuild),
        ):
            if is_set and (self.to != MARKDOWN or self.file is not None):
                raise InputError(
                    f"to and file apply to a table or a plot and have no effect with {name}. Remove"
                    " one of them.",
                    key="to" if self.file is None else "file",
                    value=self.to if self.file is None else self.file,
                )

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders that ``runs`` names."""
        return tuple(map(Path, listed_names(self.runs)))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The scores that ``metric`` names; empty if all scores are to be shown."""
        return listed_names(self.metric)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that ``over`` names; empty if dpft chooses them."""
        return listed_names(self.over)


def expand(overrides: list[str]) -> list[str]:
    """Return the overrides, with ``runs=`` and all arguments without a key merged into one list.

    ``dpft report outputs/a outputs/b`` becomes ``runs=[outputs/a,outputs/b]``. The merge is needed
    because Hydra keeps only the last value of a repeated key.
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
        InputError: A folder contains no finished run or a symbolic link, a run has no ledger, or a
            key or score does not exist.
        StateError: The files of a run are damaged.
    """
    records, unfinished = read_finished_runs(config.folders)
    if config.rebuild:
        for record in records:
            rebuild_report(record)
            logger.info("%s: regenerated %s and %s", record.folder, REPORT, PAGE)
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
                "to=plot needs runs with public scores, but these runs have none. Scores of private"
                f" splits are only in each run's {PRIVATE_METRICS}.",
                key="to",
                value=config.to,
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
    """Return a run's epsilon and delta, their accountant, and whether the run is private.

    The guarantee is computed from the ledger. It includes the tokenizer if the tokenizer was made
    from the same records.
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
