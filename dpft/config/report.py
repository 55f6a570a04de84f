"""The configuration of ``dpft report``."""

from pathlib import Path
from typing import Literal

from dpft.config.answers import Names, Output, check_folder, check_plot, listed_names
from dpft.config.section import Section
from dpft.errors import InputError

MARKDOWN, PLOT = "markdown", "plot"


class ReportConfig(Section):
    """``dpft report``, conf/report.yaml."""

    runs: Names = None
    """Folders of runs or of sweeps: one or a list of them."""
    over: Names = None
    """Keys of the runs' configuration to show first, such as train.seed. None: the keys that
    differ, except for seeds."""
    metric: Names = None
    """Scores in tables and plots: one or a list. None: all scores in tables, the first one in a
    plot."""
    to: Literal["csv", "markdown", "latex", "html", "plot"] = "markdown"
    """Format: csv (one row per run), or markdown, latex, html, plot (one row or point per setting).
    """
    file: str | None = None
    """File to write. None: stdout, or report.png for to=plot."""
    rebuild: bool = False
    """Whether to write each run's own report.md, report.html and model card again, and no table."""
    output: Output = "table"
    """table for people, or json: one object on stdout."""

    def _check_fields(self) -> None:
        if not self.folders:
            raise InputError("runs must name at least one folder, got none; give runs=FOLDER.")
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
                    f"to and file are for a table or a plot, got them with {name}; leave one of"
                    " them out."
                )

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders that ``runs`` names."""
        return tuple(map(Path, listed_names(self.runs)))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The scores that ``metric`` names; none if all are meant."""
        return listed_names(self.metric)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that ``over`` names; none if they are to be found."""
        return listed_names(self.over)
