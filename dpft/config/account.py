"""The configurations of ``dpft account``, ``doctor`` and ``report``, which never import torch.

Accounting is arithmetic: it should answer in about the time its accountants take.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from dpft.config.load import by_name
from dpft.errors import InputError
from dpft.privacy.accounting.accountants import LEADING_ACCOUNTANTS
from dpft.privacy.mechanisms.base import MECHANISMS, MechanismConfig
from dpft.privacy.mechanisms.dp_sgd import DPSGDConfig

OUTPUTS = ("table", "json")
PLOTS = (".svg", ".png")
HEAD_LENGTH = 64
POLYMORPHIC = {"mechanism": by_name(MECHANISMS.named)}
Names = str | tuple[str, ...] | None
"""One name, or several of them."""


@dataclass(frozen=True, kw_only=True)
class AccountConfig:
    """``dpft account``, conf/account.yaml."""

    num_examples: int | None = None
    """Public number of training examples, or of units."""
    expected_batch_size: int | None = None
    """Examples of a step in expectation; give it or ``sample_rate``."""
    sample_rate: float | None = None
    """Probability with which each example is in a step; give it or ``expected_batch_size``."""
    epochs: float | None = None
    """Passes over the data in expectation; give it or ``steps``."""
    steps: int | None = None
    """Noisy steps; give them or ``epochs``."""
    delta: float | None = None
    """Delta; None: 1 / (2 * num_examples), or of runs their own, the smallest."""
    eps: float | None = None
    """Epsilon to find the noise multiplier for; give it or ``noise_multiplier``."""
    noise_multiplier: float | None = None
    """Noise multiplier to find epsilon for; give it or ``eps``."""
    curve: bool = False
    """Epsilon over growing numbers of steps."""
    to: str | None = None
    """File for the plot of ``curve``."""
    run: str | None = None
    """A run's folder, to account for what its ledger holds."""
    runs: Names = None
    """Folders of runs on the same data, or with such runs below them, however deep."""
    leave_out: Names = None
    """Folders of runs that ``runs`` leaves out of the total."""
    data_id: str | None = None
    """With ``runs``: leaves out those whose privacy.data_id is another."""
    head: str | None = None
    """The head of the run's ledger, as it was lodged elsewhere."""
    mechanism: MechanismConfig = field(default_factory=DPSGDConfig)
    """How draws and noise of steps hang together."""
    accountant: str | None = None
    """The accountant whose bound is the headline; None: prv, or the one of the run's own report."""
    output: str = "table"
    """table for people, or json: one object on stdout."""

    def __post_init__(self) -> None:
        check_output(self.output)
        if self.accountant is not None and self.accountant not in LEADING_ACCOUNTANTS:
            known = ", ".join(LEADING_ACCOUNTANTS)
            raise InputError(f"accountant must be one of {known}, got {self.accountant!r}.")
        self._check_head()
        if self.run is not None or self.runs is not None:
            self._check_runs()
        else:
            self._check_numbers()

    @property
    def leader(self) -> str:
        """The accountant whose bound is the headline where no run's report names one."""
        return self.accountant or LEADING_ACCOUNTANTS[0]

    @property
    def run_folders(self) -> tuple[str, ...]:
        """The folders that ``runs`` names."""
        return _listed(self.runs)

    @property
    def folders_left_out(self) -> tuple[str, ...]:
        """The folders that ``leave_out`` names."""
        return _listed(self.leave_out)

    def _check_head(self) -> None:
        if self.head is not None and self.run is None:
            raise InputError("head needs run=RUN, the run of that ledger, got none; give it.")
        if self.head is not None and not re.fullmatch(f"[0-9a-f]{{{HEAD_LENGTH}}}", self.head):
            raise InputError(
                f"head must be {HEAD_LENGTH} hexadecimal digits in lower case, as the run printed"
                f" it, got {self.head!r}."
            )

    def _check_runs(self) -> None:
        check_exactly_one(run=self.run, runs=self.runs)
        for name in ("leave_out", "data_id"):
            if self.runs is None and getattr(self, name) is not None:
                raise InputError(f"{name} needs runs=DIR, got run={self.run}; drop it.")
        if self.run is None and not self.run_folders:
            raise InputError("runs must name a folder at least, got none; give runs=[A,B].")
        key = "runs" if self.run is None else "run"
        others = [name for name in _NUMBERS if getattr(self, name) not in (None, False)]
        others += ["mechanism"] if self.mechanism.makes.has_streams else []
        if others:
            raise InputError(
                f"{key} takes its numbers from the ledger, got {', '.join(others)} too; drop"
                f" {'it' if len(others) == 1 else 'them'}, or drop {key}."
            )

    def _check_numbers(self) -> None:
        check_exactly_one(eps=self.eps, noise_multiplier=self.noise_multiplier)
        check_exactly_one(epochs=self.epochs, steps=self.steps)
        check_exactly_one(
            expected_batch_size=self.expected_batch_size, sample_rate=self.sample_rate
        )
        if self.to is not None:
            if not self.curve:
                raise InputError("to needs curve=true, got curve=false; give it.")
            check_plot(self.to)
        self._check_mechanism()
        check_positive(
            num_examples=self.num_examples,
            expected_batch_size=self.expected_batch_size,
            sample_rate=self.sample_rate,
            epochs=self.epochs,
            steps=self.steps,
            eps=self.eps,
            noise_multiplier=self.noise_multiplier,
        )

    def _check_mechanism(self) -> None:
        if not self.mechanism.makes.has_streams:
            return
        if self.curve:
            raise InputError(
                f"curve needs mechanism=dp_sgd, got mechanism={self.mechanism.name}; drop one."
            )
        if self.num_examples is None:
            raise InputError(
                f"num_examples must be given with mechanism={self.mechanism.name}, got none; give"
                " it."
            )


_NUMBERS = (
    *("num_examples", "expected_batch_size", "sample_rate", "epochs", "steps", "eps"),
    *("noise_multiplier", "curve", "to"),
)


def check_exactly_one(**values: object) -> None:
    """Refuses two keys of which both or neither is given."""
    given = [name for name, value in values.items() if value is not None]
    if len(given) != 1:
        raise InputError(
            f"exactly one of {' and '.join(values)} must be given, got "
            f"{'both; drop one of them' if given else 'neither; give one of them'}."
        )


def check_positive(**values: float | None) -> None:
    """Refuses numbers that are not positive."""
    for name, value in values.items():
        if value is not None and value <= 0:
            raise InputError(f"{name} must be above 0, got {value}; raise it.")


def check_plot(file: str, *, key: str = "to") -> None:
    """Refuses a file that no plot can be written to."""
    if Path(file).suffix not in PLOTS:
        raise InputError(f"{key} must be a file named *{' or *'.join(PLOTS)}, got {file!r}.")
    check_folder(file, key=key)


def check_folder(file: str, *, key: str) -> None:
    """Refuse a file in a folder that does not exist."""
    if not Path(file).parent.is_dir():
        raise InputError(f"{key} must be in a folder that exists, got {file!r}; make it first.")


def check_output(output: str) -> None:
    """Refuses an output format that no subcommand writes."""
    if output not in OUTPUTS:
        raise InputError(f"output must be one of {', '.join(OUTPUTS)}, got {output!r}.")


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """``dpft doctor``, conf/doctor.yaml."""

    output: str = "table"
    """table for people, or json: one object on stdout."""

    def __post_init__(self) -> None:
        check_output(self.output)


MARKDOWN, PLOT = "markdown", "plot"
FORMATS = ("csv", MARKDOWN, "latex", "html", PLOT)


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """``dpft report``, conf/report.yaml."""

    runs: Names = None
    """Folders of runs or of sweeps: one or a list of them."""
    over: Names = None
    """Keys of the runs' configuration to show first, such as train.seed. None: the keys that
    differ, except for seeds."""
    metric: Names = None
    """Scores in tables and plots: one or a list. None: all scores in tables, the first one in a
    plot."""
    to: str = MARKDOWN
    """Format: csv (one row per run), or markdown, latex, html, plot (one row or point per setting).
    """
    file: str | None = None
    """File to write. None: stdout, or report.png for to=plot."""
    rebuild: bool = False
    """Whether to write each run's own report.md, report.html and model card again, and no table."""
    output: str = "table"
    """table for people, or json: one object on stdout."""

    def __post_init__(self) -> None:
        check_output(self.output)
        if not self.folders:
            raise InputError("runs must name at least one folder, got none; give runs=FOLDER.")
        if self.to not in FORMATS:
            raise InputError(
                f"to must be one of {', '.join(FORMATS)}, got {self.to!r}; file=PATH chooses where"
                " it is written."
            )
        if self.file is not None:
            check_folder(self.file, key="file")
            if self.to == PLOT:
                check_plot(self.file, key="file")
        for name, given in (("output=json", self.output == "json"), ("rebuild=true", self.rebuild)):
            if given and (self.to != MARKDOWN or self.file is not None):
                raise InputError(
                    f"to and file are for a table or a plot, got them with {name}; leave one of"
                    " them out."
                )

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders that ``runs`` names."""
        return tuple(map(Path, _listed(self.runs)))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The scores that ``metric`` names; none if all are meant."""
        return _listed(self.metric)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that ``over`` names; none if they are to be found."""
        return _listed(self.over)


def _listed(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names or ()
