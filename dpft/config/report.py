"""The configuration of ``dpft report``, apart from the others so that it imports no torch."""

from dataclasses import dataclass
from pathlib import Path

from dpft.config.account import check_output
from dpft.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """``dpft report``, conf/report.yaml."""

    ratings: str | tuple[str, ...] | None = None
    """Filled rating sheets of one key: a file or a list of files."""
    key: str | None = None
    """The sheets' key; None: the one beside the first sheet."""
    output: str = "table"

    def __post_init__(self) -> None:
        check_output(self.output)
        if not self.sheets:
            raise InputError("ratings must be given, got none; give ratings=FILE.")
        if len({path.resolve() for path in self.sheets}) < len(self.sheets):
            raise InputError("ratings must name different files, got one of them twice.")

    @property
    def sheets(self) -> tuple[Path, ...]:
        """The files that ``ratings`` names."""
        named = (self.ratings,) if isinstance(self.ratings, str) else self.ratings or ()
        return tuple(map(Path, named))
