"""A run's canaries, in its private folder."""

from dataclasses import dataclass

from dpft.records.values import Count, Versioned


@dataclass(frozen=True, kw_only=True)
class KeptCanary:
    """One canary; private, as whether it was trained on is."""

    kind: str
    """With a coin, or of exposure."""
    read: tuple[str, ...]
    """Words that the model reads."""
    learned: tuple[str, ...]
    """Words that it learns, or might have."""
    number: int
    """Chooses its label, where there is one."""
    copies: Count
    """Times that it is among the training records."""
    unit: str
    """The privacy unit of all its copies, which no record of a user has."""
    included: bool
    """Whether it was trained on."""
    texts: tuple[str, ...]
    """What a reader can search for."""


@dataclass(frozen=True, kw_only=True)
class KeptCanaries(Versioned):
    """All canaries of a run."""

    canaries: tuple[KeptCanary, ...]
    """Included ones and others."""
