"""The configuration of ``dpft report``, apart from the others so that it imports no torch."""

from dataclasses import dataclass
from pathlib import Path

from dpft.config.account import check_output
from dpft.errors import InputError

Names = str | tuple[str, ...] | None
LATEX = "latex"
"""Instead of a folder: the tables are printed as LaTeX."""


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """``dpft report``, conf/report.yaml."""

    runs: Names = None
    """Folders of runs or of sweeps: one or a list of them."""
    over: Names = None
    """One to three keys of the runs' configuration, train.seed too: of rows, of columns, of tables;
    None: one or two that differ."""
    metric: Names = None
    """What is shown over these keys and drawn: one metric or a list; None: each split's first."""
    to: str | None = None
    """Folder for report.md, table.csv and report.html; latex: LaTeX on stdout; None: Markdown."""
    rebuild: bool = False
    """Whether each run's own report.md, report.html and card are written anew, and no table."""
    signal_to_noise: bool = False
    """Whether scores over the first updates' signal-to-noise ratios, which are private, are drawn
    into ``to``'s private folder."""
    ratings: Names = None
    """Filled rating sheets of one key: a file or a list of files."""
    key: str | None = None
    """The sheets' key; None: the one beside the first sheet."""
    output: str = "table"
    """table for people, or json: one object on stdout."""

    def __post_init__(self) -> None:
        check_output(self.output)
        if bool(self.sheets) == bool(self.folders):
            given = "both" if self.sheets else "neither"
            raise InputError(
                f"exactly one of runs and ratings must be given, got {given}; give runs=FOLDER for"
                " tables of runs, or ratings=FILE for people's ratings."
            )
        if len({path.resolve() for path in self.sheets}) < len(self.sheets):
            raise InputError("ratings must name different files, got one of them twice.")
        self._check_tables()

    @property
    def sheets(self) -> tuple[Path, ...]:
        """The files that ``ratings`` names."""
        return tuple(map(Path, _listed(self.ratings)))

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders that ``runs`` names."""
        return tuple(map(Path, _listed(self.runs)))

    @property
    def metrics(self) -> tuple[str, ...] | None:
        """The metrics that ``metric`` names; None: each split's first."""
        return _listed(self.metric) or None

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that ``over`` names; none: they are chosen."""
        return _listed(self.over)

    @property
    def folder(self) -> Path | None:
        """The folder that ``to`` names; None where tables are printed."""
        return None if self.to in (None, LATEX) else Path(str(self.to)).expanduser()

    def _check_tables(self) -> None:
        if self.over is not None and not 1 <= len(set(self.keys)) == len(self.keys) <= 3:
            raise InputError(
                "over must be one to three different keys, of rows, of columns and of tables, got"
                f" {list(self.keys)}; give over=train.learning_rate or"
                " over=[method.name,privacy.eps,train.seed]."
            )
        if self.to == LATEX and self.output == "json":
            raise InputError(
                "to=latex is for output=table, got output=json; leave one of them out."
            )
        for name in ("over", "metric", "to"):
            if self.sheets and getattr(self, name) is not None:
                raise InputError(f"{name} is for runs, got it with ratings; leave one of them out.")
        if self.signal_to_noise and (self.sheets or self.folder is None):
            given = "ratings" if self.sheets else "no to" if self.to is None else "to=latex"
            raise InputError(
                "signal_to_noise=true is for runs, and draws into the private folder of to=FOLDER,"
                f" got {given}; give runs and to, or leave signal_to_noise out."
            )
        if self.rebuild and (self.sheets or self.to is not None):
            given = "ratings" if self.sheets else "to"
            raise InputError(
                "rebuild=true writes each run's own report into its folder, got it with"
                f" {given}; leave one of them out."
            )
        if self.folder is not None and self.folder.is_file():
            raise InputError(f"to must be a folder, got {self.to!r}, which is a file.")


def _listed(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names or ()
