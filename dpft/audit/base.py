"""Base of audits: configuration, the run under audit, findings, and the registry of audits.

An audit is a module of ``dpft.audit.kinds`` whose class registers itself, a YAML in conf/audit, and
a test. Importing this room imports no torch, and libraries of the ``audit`` extra are imported
where an audit needs them.
"""

import importlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from dpft.commands.splits import read_canaries
from dpft.config.answers import Output
from dpft.config.schema import TrainConfig
from dpft.config.section import ChosenBy, Section, by_name
from dpft.data.canaries import Canary, make_canaries
from dpft.errors import InputError, StateError
from dpft.kinds import Registry
from dpft.reports.audit_findings import ExposureTable, GuessesInShort
from dpft.reports.promises import RunPrivacy
from dpft.reports.terminal import Grid
from dpft.run_folder import AUDIT_KEY, CANARIES
from dpft.training.training_config import DeviceConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class AuditedRun:
    """The run under audit, as every audit is given it."""

    folder: Path
    config: TrainConfig
    """Of the run, whose training has ended."""
    privacy: RunPrivacy
    """Its promise."""
    device: DeviceConfig
    synthetic: Path | None = None
    """File of records that the model wrote."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The outcome of an audit."""

    record: Any
    """All of it, as a record; private."""
    rows: Sequence[tuple[str, str]] = ()
    """Quantities and their values, in words, for a terminal."""
    parts: Sequence[Grid | str] = ()
    """Tables and sentences in place of ``rows``."""
    files: Sequence[str] = ()
    """Sentences that say where the files are that the audit has written itself; empty: it has
    written none."""
    notes: Sequence[str] = ()
    """Sentences without which the numbers cannot be read."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """SVG by name; as public as the whole finding."""
    released: GuessesInShort | ExposureTable | None = None
    """What the run's report says of it, figures included, which must follow from canaries and
    public things alone; None: nothing."""


class Audit(Section, ABC):
    """Base of every audit; its fields are its configuration, ``conf/audit/<name>.yaml``."""

    name: str
    """Which audit; chosen by audit=NAME."""

    @abstractmethod
    def find(self, run: AuditedRun) -> Finding:
        """Looks at a run."""


AUDITS: Registry[type[Audit]] = Registry("dpft.audit.kinds", key="audit.name")
"""Every audit by name."""


def kept_canaries(run: AuditedRun, kind: str, wanted: int, *, noun: str) -> list[Canary]:
    """Returns the canaries of one kind that a run had, those left out among them.

    Words and coins are made anew of the run's key: others would have an audit find what never was.

    Raises:
        InputError: Their file is gone, or holds another number of them.
        StateError: They are not those of the run's key.
    """
    from dpft.commands.interrupted_run import read_secrets

    every = read_canaries(run.folder)
    canaries = [canary for canary in every if canary.kind == kind]
    if len(canaries) != wanted:
        raise InputError(
            f"{run.folder / CANARIES} must hold the run's {wanted} {noun}, got {len(canaries)};"
            " without them audit=membership and audit=memorization can still be done."
        )
    key = read_secrets(run.folder).audit_key
    if not key:
        logger.warning(
            "whether %s holds the run's own canaries is not checked without %s, which is gone",
            run.folder / CANARIES,
            run.folder / AUDIT_KEY,
        )
    elif make_canaries(run.config.audit, _tokenizer_of(run), key) != every:
        raise StateError(
            f"{run.folder / CANARIES} holds other canaries or coins than {run.folder / AUDIT_KEY}"
            " makes; put both back as they were."
        )
    return canaries


def _tokenizer_of(run: AuditedRun) -> Any:
    """Returns the tokenizer of whose vocabulary a run's canaries were made."""
    from dpft.commands.task_model import trained_model_of_run

    model = trained_model_of_run(run.folder, run.config)
    task = model.fitted(run.config.task)
    return model.processor(task, model.head(task))


HiddenPart = Literal["continuation", "spans"]
CONTINUATION: Final = "continuation"
SPANS: Final = "spans"
"""The parts of a record that ``audit=memorization`` has a model write."""
SYNTHETIC = "synthetic"


class AuditConfig(Section):
    """``dpft audit``, conf/audit.yaml."""

    audit: Annotated[Audit, ChosenBy(by_name(AUDITS.named))]
    run: str = Field(examples=["outputs/2026-01-31/12-00-00"])
    """Folder of a run."""
    synthetic: str | None = None
    """File that ``dpft generate`` wrote, for audit=synthetic."""
    output: Output = "table"
    """table for people, or json: one object on stdout."""
    train: DeviceConfig = Field(default_factory=DeviceConfig)

    def _check_fields(self) -> None:
        if self.audit.name == SYNTHETIC and self.synthetic is None:
            raise InputError(
                "audit=synthetic needs synthetic=FILE, got none; give what dpft generate wrote."
            )
        if self.audit.name != SYNTHETIC and self.synthetic is not None:
            raise InputError(
                f"synthetic=FILE is for audit=synthetic, got audit={self.audit.name}; drop one."
            )


def import_extra(module: str) -> ModuleType:
    """Returns a module of the ``audit`` extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise InputError(
            f"this audit needs {package}, of the extra: pip install 'dpft[audit]'."
        ) from error
