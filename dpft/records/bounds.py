"""Epsilon as accountants answer it, and the bound that is reported."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from dpft.records.form import Limits
from dpft.records.values import Delta, NotNegative

DeltaSource = Annotated[
    str,
    Limits(
        choices=(
            "given",
            "own_data",
            "published",
        )
    ),
]
Relation = Annotated[str, Limits(choices=("add_or_remove_one",))]
Sampler = Annotated[
    str,
    Limits(
        choices=(
            "poisson",
            "cyclic_poisson",
            "mixed",
            "none",
        )
    ),
]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An interval in which epsilon is."""

    lower: float
    """Proven lower bound."""
    estimate: float
    """Estimate."""
    upper: NotNegative
    """Proven upper bound."""


@dataclass(frozen=True, kw_only=True)
class NoAnswer:
    """No answer."""

    error: str
    """Why there is none."""


Answer = NotNegative | Interval | NoAnswer
Epsilons = Mapping[str, Answer]
"""An upper bound (rdp, pld), an estimate (gdp), an interval (prv), or why there is none."""


@dataclass(frozen=True, kw_only=True)
class Promise:
    """Epsilon, and whose bound it is."""

    epsilon: NotNegative
    """The headline: a proven upper bound, unrounded."""
    delta: Delta
    """The delta at which epsilon holds."""
    accountant: str
    """Whose bound the headline is."""
