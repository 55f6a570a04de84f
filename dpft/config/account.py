"""Configuration of ``dpft account``, which never imports torch.

The accountants need no torch, and importing it would take longer than the accounting.
"""

import re
from typing import Annotated, Literal

from pydantic import Field

from dpft.config.output_keys import Names, Output, check_plot, listed_names
from dpft.config.section import ChosenBy, Section, by_name
from dpft.errors import InputError
from dpft.privacy.accounting.accountants import LEADING_ACCOUNTANTS
from dpft.privacy.mechanisms.base import MECHANISMS, MechanismConfig
from dpft.privacy.mechanisms.dp_sgd import DPSGDConfig
from dpft.strict_model import AtLeastOne, Delta, Positive, Rate

HEAD_LENGTH = 64


class AccountConfig(Section):
    """Configuration of ``dpft account``, conf/account.yaml."""

    num_examples: AtLeastOne | None = Field(default=None, examples=[1000])
    """Public number of training examples, or of privacy units."""
    expected_batch_size: AtLeastOne | None = Field(default=None, examples=[64])
    """Expected number of examples per step; set this key or ``sample_rate``."""
    sample_rate: Rate | None = Field(default=None, examples=[0.01])
    """Probability that a step includes an example; set this key or ``expected_batch_size``."""
    epochs: Positive | None = Field(default=None, examples=[3.0])
    """Expected number of passes over the data; set this key or ``steps``."""
    steps: AtLeastOne | None = Field(default=None, examples=[100])
    """Number of noisy steps; set this key or ``epochs``."""
    delta: Delta | None = Field(default=None, examples=[1e-5])
    """Target delta (null: 1 / (2 * num_examples), or with run or runs the smallest delta of the
    runs)."""
    eps: Positive | None = Field(default=None, examples=[3.0])
    """Target epsilon, for which dpft computes the noise multiplier; set this key or
    ``noise_multiplier``."""
    noise_multiplier: Positive | None = Field(default=None, examples=[1.0])
    """Noise multiplier, for which dpft computes epsilon; set this key or ``eps``."""
    curve: bool = False
    """Also compute epsilon for increasing numbers of steps."""
    to: str | None = None
    """File for the plot of ``curve``, .svg or .png."""
    run: str | None = None
    """Folder of a run, whose epsilon is computed from its ledger."""
    runs: Names = None
    """Folders of runs on the same data, or folders that contain such runs at any depth."""
    leave_out: Names = None
    """Folders of runs that the total of ``runs`` skips."""
    data_id: str | None = None
    """With ``runs``: skip runs that set privacy.data_id to another value."""
    head: str | None = None
    """Head of the run's ledger, as published elsewhere, to compare with the ledger."""
    mechanism: Annotated[MechanismConfig, ChosenBy(by_name(MECHANISMS.named))] = Field(
        default_factory=DPSGDConfig
    )
    """How the sampling and the noise of different steps are correlated."""
    accountant: Literal["prv", "pld", "rdp"] | None = None
    """Accountant of the reported bound (null: prv, or the accountant in the run's report)."""
    output: Output = "table"
    """Output format: table for people, or json for one object on stdout."""

    def _check_fields(self) -> None:
        self._check_head()
        if self.run is not None or self.runs is not None:
            self._check_runs()
        else:
            self._check_numbers()

    @property
    def leader(self) -> str:
        """The accountant of the reported bound if no run's report names one."""
        return self.accountant or LEADING_ACCOUNTANTS[0]

    @property
    def run_folders(self) -> tuple[str, ...]:
        """The folders that ``runs`` names."""
        return listed_names(self.runs)

    @property
    def folders_left_out(self) -> tuple[str, ...]:
        """The folders that ``leave_out`` names."""
        return listed_names(self.leave_out)

    def _check_head(self) -> None:
        if self.head is not None and self.run is None:
            raise InputError(
                "head needs run=RUN, the run that the ledger belongs to.",
                key="head",
                value=self.head,
                hint="run=outputs/2026-01-31/12-00-00",
            )
        if self.head is not None and not re.fullmatch(f"[0-9a-f]{{{HEAD_LENGTH}}}", self.head):
            raise InputError(
                f"head must be {HEAD_LENGTH} lowercase hexadecimal digits, as the run printed them,"
                f" got {self.head!r}.",
                key="head",
                value=self.head,
            )

    def _check_runs(self) -> None:
        check_exactly_one(run=self.run, runs=self.runs)
        for name in ("leave_out", "data_id"):
            if self.runs is None and getattr(self, name) is not None:
                raise InputError(
                    f"{name} has no effect with run={self.run}, because it selects among several"
                    " runs. Remove the key, or give runs=DIR instead of run.",
                    key=name,
                    value=getattr(self, name),
                )
        if self.run is None and not self.run_folders:
            raise InputError(
                "runs must name at least one folder, got none.",
                key="runs",
                value=self.runs,
                hint="'runs=[A,B]'",
            )
        key = "runs" if self.run is None else "run"
        others = [name for name in _NUMBERS if getattr(self, name) not in (None, False)]
        others += ["mechanism"] if self.mechanism.makes.has_streams else []
        if others:
            raise InputError(
                f"{key} takes its numbers from the ledger, got {', '.join(others)} too. Remove"
                f" {'it' if len(others) == 1 else 'them'}, or remove {key}.",
                key=others[0],
                value=getattr(self, others[0]),
            )

    def _check_numbers(self) -> None:
        check_exactly_one(eps=self.eps, noise_multiplier=self.noise_multiplier)
        check_exactly_one(epochs=self.epochs, steps=self.steps)
        check_exactly_one(
            expected_batch_size=self.expected_batch_size, sample_rate=self.sample_rate
        )
        if self.to is not None:
            if not self.curve:
                raise InputError(
                    "to needs curve=true, got curve=false.",
                    key="to",
                    value=self.to,
                    hint="curve=true",
                )
            check_plot(self.to)
        self._check_mechanism()

    def _check_mechanism(self) -> None:
        if not self.mechanism.makes.has_streams:
            return
        if self.curve:
            raise InputError(
                f"curve needs mechanism=dp_sgd, got mechanism={self.mechanism.name}.",
                key="curve",
                value=True,
                hint="mechanism=dp_sgd",
            )
        if self.num_examples is None:
            raise InputError(
                f"num_examples is required with mechanism={self.mechanism.name}.",
                key="num_examples",
                hint="num_examples=1000",
            )


_NUMBERS = (
    *("num_examples", "expected_batch_size", "sample_rate", "epochs", "steps", "eps"),
    *("noise_multiplier", "curve", "to"),
)


def check_exactly_one(**values: object) -> None:
    """Reject the values of several keys unless exactly one of them is given."""
    given_keys = [name for name, value in values.items() if value is not None]
    if len(given_keys) != 1:
        first, which = next(iter(values)), "both" if given_keys else "neither"
        raise InputError(
            f"exactly one of {' and '.join(values)} must be given, got {which}.",
            key=first,
            value=values[first],
            hint=None if given_keys else f"{first}=3",
        )
