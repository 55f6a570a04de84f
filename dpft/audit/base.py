"""Base class of audits, the registry of audits, and the ``audit`` section of ``dpft audit``.

To add an audit, add a module to this package whose class registers itself, a YAML file in
conf/audit, and a test. The module that declares an audit's configuration imports torch,
transformers and modules that need them only inside functions. An invalid command is therefore
reported within a second.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from dpft.config.output_keys import Output
from dpft.config.schema import TrainConfig
from dpft.config.section import ChosenBy, Section, by_name
from dpft.errors import InputError
from dpft.registry import (
    Registry,
)
from dpft.reports.audit_findings import ExposureTable, GuessesInShort
from dpft.reports.privacy_json import RunPrivacy
from dpft.reports.terminal import Grid
from dpft.training.training_config import DeviceConfig


@dataclass(frozen=True, kw_only=True)
class AuditedRun:
    """The audited run, with everything that an audit needs to know about it."""

    folder: Path
    config: TrainConfig
    """Configuration of the run, whose training has ended."""
    privacy: RunPrivacy
    """The privacy guarantee of the run."""
    device: DeviceConfig
    synthetic: Path | None = None
    """File of records that the model generated."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The outcome of an audit."""

    record: Any
    """All results of the audit, as the object that is written to JSON; private."""
    rows: Sequence[tuple[str, str]] = ()
    """Rows to print on a terminal: a quantity and its value, both as text."""
    parts: Sequence[Grid | str] = ()
    """Tables and sentences to print instead of ``rows``."""
    files: Sequence[str] = ()
    """Sentences that name the files that the audit has written. If there are none, the command
    writes ``record``."""
    notes: Sequence[str] = ()
    """Sentences that are necessary to interpret the numbers."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """Plots as SVG, by name. They are private unless ``released`` is set."""
    released: GuessesInShort | ExposureTable | None = None
    """Results that the run's report shows together with the figures. They must depend only on
    canaries and public information. If None, the report shows nothing."""


class Audit(Section, ABC):
    """Base class of audits; its fields are its configuration, ``conf/audit/<name>.yaml``."""

    name: str
    """Name of the audit, set with audit=NAME."""

    @abstractmethod
    def find(self, run: AuditedRun) -> Finding:
        """Attack a run, and return the result of the attack.

        Raises:
            InputError: The run lacks data that the audit needs.
            StateError: A file of the run is damaged.
        """


AUDITS: Registry[type[Audit]] = Registry("dpft.audit", key="audit.name")
"""Registry of audits by name."""


HiddenPart = Literal["continuation", "spans"]
CONTINUATION: Final = "continuation"
SPANS: Final = "spans"
"""The parts of a record that the model must generate in ``audit=memorization``."""
SYNTHETIC = "synthetic"


class AuditConfig(Section):
    """Configuration of ``dpft audit``, conf/audit.yaml."""

    audit: Annotated[Audit, ChosenBy(by_name(AUDITS.named))]
    run: str = Field(examples=["outputs/2026-01-31/12-00-00"])
    """Folder of a run."""
    synthetic: str | None = None
    """File that ``dpft generate`` wrote, for audit=synthetic."""
    output: Output = "table"
    """table for people, or json for one object on stdout."""
    train: DeviceConfig = Field(default_factory=DeviceConfig)

    def _check_fields(self) -> None:
        if self.audit.name == SYNTHETIC and self.synthetic is None:
            raise InputError(
                "audit=synthetic needs synthetic=FILE, the records that dpft generate wrote, got"
                " none.",
                key="synthetic",
            )
        if self.audit.name != SYNTHETIC and self.synthetic is not None:
            raise InputError(
                "synthetic=FILE has an effect only with audit=synthetic, got"
                f" audit={self.audit.name}. Remove it or change the audit.",
                key="synthetic",
                value=self.synthetic,
                hint="audit=synthetic",
            )
