"""What ``dpft doctor`` and ``dpft list`` print."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from dpft.records.form import null
from dpft.records.values import Versioned


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check."""

    what: str
    """What was looked for."""
    state: Literal["ok", "warning", "missing"]
    """What was found of it."""
    found: str
    """In words: a version, a number of GiB."""
    cost: str | None = null()
    """What does not work, or works worse; null where all is well."""
    remedy: str | None = null()
    """How to get it."""
    essential: bool = False
    """Whether dpft cannot train without it."""


@dataclass(frozen=True, kw_only=True)
class Doctor(Versioned):
    """What this machine has and lacks."""

    can_train: bool
    """Whether nothing essential is missing."""
    checks: tuple[Check, ...]
    """Every check."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What was asked for, each name with a line."""

    KEYWORDS: ClassVar[Mapping[str, Any]] = {"minProperties": 1, "maxProperties": 1}
    tasks: Mapping[str, str] | None = None
    """The tasks."""
    models: Mapping[str, str] | None = None
    """The models."""
    methods: Mapping[str, str] | None = None
    """The methods."""
    recipes: Mapping[str, str] | None = None
    """The recipes."""
    metrics: Mapping[str, str] | None = None
    """The metrics."""
