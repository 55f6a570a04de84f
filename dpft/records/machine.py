"""What ``dpft doctor`` and ``dpft list`` print."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from dpft.records.form import KeysThere, Ruled, Rules, null
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
class Listing(Ruled):
    """What was asked for, each name with a line."""

    RULES: ClassVar[Rules] = (KeysThere(least=1, most=1),)
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
